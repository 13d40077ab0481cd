"""Conformance suites that others can run against their own bodies."""

from cotune.testing.engines import EngineConformance, EngineUnderTest, RealEngineConformance

__all__ = ["EngineConformance", "EngineUnderTest", "RealEngineConformance"]
