"""Installed from a wheel, outside a checkout, the package lists recipes, trains, evaluates and reports."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import tacit
from tacit.core.errors import install_command

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SHORT = shlex.split(
    "--iterations 1 --groups 2 --group-size 2 --tasks 8 --max-steps 5 --sft.steps 2 --sft.batch 4 --sft.tasks 2 "
    "--evaluation.tasks 4 --evaluation.max-steps 5 --evaluation.also= --no-evaluation.untrained --engine.threads 1"
)


def files_of_the_package() -> set[str]:
    found = (path for path in (ROOT / "tacit").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix() for path in found}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, because a `build` folder of an earlier version could add missing files."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "tacit", source / "tacit", ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--wheel-dir", str(out), str(source)], check=True)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> Path:
    """A virtual environment with the wheel. It uses our environment's dependencies but not our tacit: directories of a .pth
    file are searched last, and .pth files inside them (such as an editable installation) are ignored."""
    place = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    # Install before adding the dependencies; otherwise pip would consider our own tacit as installed.
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin/python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True, env=untouched())
    (own,) = place.glob("lib/python*/site-packages")
    borrowed = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (own / "borrowed.pth").write_text("\n".join(borrowed) + "\n", encoding="utf-8")
    return place


def untouched() -> dict[str, str]:
    """This process's environment without variables that point to the checkout."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "TACIT"))}


@pytest.fixture
def run_program(environment, tmp_path):
    """Runs a command of the installed package in an empty directory and returns its output."""

    def run(program: str, *words: str) -> str:
        ran = subprocess.run(
            [environment / "bin" / program, *words],
            cwd=tmp_path,
            env=untouched() | {"TACIT_CACHE": str(tmp_path / "cache"), "COLUMNS": "160", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    return run


@pytest.mark.slow
def test_wheel_contains_every_package_file_and_the_licence(wheel):
    packed = set(zipfile.ZipFile(wheel).namelist())
    assert sorted(files_of_the_package() - packed) == []
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in packed)
    assert wheel.name.startswith(f"{tacit.DISTRIBUTION.replace('-', '_')}-{tacit.__version__}-")


@pytest.mark.slow
def test_installed_package_trains_the_quickstart_outside_a_checkout(run_program, environment, tmp_path):
    assert Path(run_program("python", "-c", "import tacit; print(tacit.__file__)").strip()).is_relative_to(environment)
    recipes = run_program("tacit", "list", "recipes")
    assert "quickstart" in recipes and "comparisons/step-credit" in recipes and "published/bipace-table4" in recipes
    where = run_program("tacit", "list", "recipes", "constant-context-table2").strip()
    assert Path(where).is_relative_to(environment) and Path(where).suffix == ".sh"
    run_program("tacit", "train", "--config", "quickstart", "--out", "runs/quickstart", *SHORT)
    measured = json.loads(run_program("tacit", "eval", "runs/quickstart", "--json").strip().splitlines()[-1])
    assert measured["equals_run"] is True and measured["episodes"] == 4
    run_program("tacit", "report", "runs/quickstart")
    page = (tmp_path / "runs/quickstart/report.html").read_text(encoding="utf-8")
    for part in ("page.css", "page.js"):
        assert (ROOT / "tacit/report" / part).read_text(encoding="utf-8").splitlines()[-1] in page


def test_messages_name_the_distribution_and_existing_extras():
    assert PROJECT["name"] == tacit.DISTRIBUTION
    assert install_command("smollm") == f"`pip install '{PROJECT['name']}[smollm]'`"
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tacit").rglob("*.py")]
    named = {extra for source in sources for extra in re.findall(r"\binstall_command\('(\w+)'\)", source)}
    assert {"smollm", "wandb"} <= named <= set(PROJECT["optional-dependencies"])
    assert not any("tacit[" in source for source in sources)


def test_git_ignores_no_package_file():
    """An ignore pattern for run folders once excluded `tacit/runs/__init__.py`."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "--others", "--ignored", "--exclude-standard", "--", "tacit"]
    ignored = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    assert [path for path in ignored if "__pycache__" not in path] == []
