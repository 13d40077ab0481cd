"""Conformance test suites for third-party bodies."""

from cotune.testing.engines import EngineConformance, RealEngineConformance
from cotune.testing.harness import EngineUnderTest, behave

__all__ = ["EngineConformance", "EngineUnderTest", "RealEngineConformance", "behave"]
