"""Makes `world` importable: tests are collected by path, not as packages."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
