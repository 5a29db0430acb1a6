"""What ``pip install .`` installs."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import localllm

ROOT = Path(localllm.__file__).parent.parent


@pytest.mark.slow
def test_the_wheel_is_complete(tmp_path):
    """All data and the type marker are in it as files, the program is its entry point, tests are not."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(pip, check=True, timeout=300)
    (path,) = tmp_path.glob("localllm-*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        assert wheel.read("localllm/data/models.yaml") == (ROOT / "models.yaml").read_bytes()
        assert {
            "localllm/data/hardware.csv",
            "localllm/data/templates/commit.yaml",
            "localllm/data/help/pipes.txt",
            "localllm/py.typed",
            "localllm/cli/main.py",
        } <= {*names}
        (entry_points,) = [wheel.read(name).decode() for name in names if name.endswith("entry_points.txt")]
    assert "localllm = localllm.__main__:main" in entry_points
    assert not [name for name in names if name.startswith(("tests/", "scripts/"))]
