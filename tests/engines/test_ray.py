"""The Ray engine on a real cluster of this machine."""

import pytest

from cotune.testing import EngineUnderTest, RealEngineConformance
from cotune.testing.engines import behave

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster of one node, with this process in it."""
    import ray

    ray.init("local", num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


class TestRayEngine(RealEngineConformance):
    @pytest.fixture
    def engine(self, tmp_path, cluster):
        from cotune.engines.local import LocalOptions
        from cotune.engines.ray import RayEngine

        engine = RayEngine("auto", behave, 0, tmp_path, LocalOptions("loss", residents=2))
        with EngineUnderTest(engine, tmp_path) as under_test:
            yield under_test
