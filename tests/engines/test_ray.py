"""The Ray engine on a real cluster of this machine."""

import pytest

from cotune.testing import EngineUnderTest, RealEngineConformance, behave

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def started(in_ray, tmp_path_factory):
    """An engine on a cluster of one node, with this process in it."""
    from cotune.engines.local_options import LocalOptions
    from cotune.engines.ray import RayEngine

    in_ray.start(gpus=0)
    folder = tmp_path_factory.mktemp("engine")
    engine = RayEngine("auto", behave, 0, folder, LocalOptions("loss", residents=2))
    with EngineUnderTest(engine, folder) as under_test:
        yield under_test


class TestRayEngine(RealEngineConformance):
    @pytest.fixture
    def engine(self, started, tmp_path):
        started.begin_anew(tmp_path)
        return started
