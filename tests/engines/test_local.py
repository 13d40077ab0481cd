import pytest

from cotune.engines.local import LocalEngine, LocalOptions
from cotune.sharing.devices import find_devices
from cotune.testing import EngineUnderTest, RealEngineConformance
from cotune.testing.engines import behave


class TestLocalEngine(RealEngineConformance):
    @pytest.fixture
    def engine(self, tmp_path):
        devices = find_devices(devices=["cpu:0@4GiB"])
        engine = LocalEngine(behave, devices, tmp_path, LocalOptions("loss", residents=2))
        with EngineUnderTest(engine, tmp_path) as under_test:
            yield under_test
