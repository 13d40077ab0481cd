"""Conformance suites that others can run against their own bodies."""

from cotune.testing.engines import EngineConformance, RealEngineConformance
from cotune.testing.harness import EngineUnderTest, behave

__all__ = ["EngineConformance", "EngineUnderTest", "RealEngineConformance", "behave"]
