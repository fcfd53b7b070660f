"""Container engines behind one face, with stand-ins that write down how they are called."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.repository.tree import ROOT

PRELUDE = ". scripts/lib.sh; . scripts/engine.sh; "


class Engines:
    """A PATH with the engines that were put on it, and a log of their calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        for tool in ("awk", "bash", "grep", "tail", "timeout"):
            (folder / tool).symlink_to(shutil.which(tool) or "")

    def add(self, name: str, script: str = "") -> None:
        file = self.folder / name
        file.write_text(f'#!{self.folder}/bash\necho "{name} $*" >>"{self.log}"\n{script}\n')
        file.chmod(0o755)

    def run(self, code: str, **environment: str) -> str:
        command = [str(self.folder / "bash"), "-euo", "pipefail", "-c", PRELUDE + code]
        environment["PATH"] = str(self.folder)
        done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def engines(tmp_path: Path) -> Engines:
    return Engines(tmp_path)


def test_docker_without_its_engine_is_passed_over(engines: Engines) -> None:
    """A docker command that reaches no engine is of no use; podman is taken."""
    engines.add("docker", "exit 1")
    engines.add("podman")

    assert engines.run("find_engine") == "podman"


def test_running_docker_is_taken_first(engines: Engines) -> None:
    """Where docker's engine answers, images go where its user looks for them."""
    engines.add("docker")
    engines.add("podman")

    assert engines.run("find_engine") == "docker"


@pytest.mark.parametrize(
    ("engine", "called"),
    [
        ("docker", "docker build --build-arg BASE=b:1 --tag t --file a file context"),
        ("podman", "podman build --build-arg BASE=b:1 --tag t --file a file context"),
        ("buildah", "buildah --storage-driver vfs bud --build-arg BASE=b:1 --tag t --file a file context"),
    ],
)
def test_each_engine_builds(engines: Engines, engine: str, called: str) -> None:
    """One function builds with any of them."""
    engines.add(engine)

    engines.run("build_image t 'a file' context BASE=b:1", ENGINE=engine)

    assert engines.calls() == [called]


@pytest.mark.parametrize(
    ("engine", "called"),
    [
        ("docker", ["docker run --rm --entrypoint evenkeel t --version"]),
        (
            "buildah",
            [
                "buildah --storage-driver vfs from --pull-never t",
                "buildah --storage-driver vfs run c1 -- evenkeel --version",
                "buildah --storage-driver vfs rm c1",
            ],
        ),
    ],
)
def test_each_engine_runs(engines: Engines, engine: str, called: list[str]) -> None:
    """One function runs a command in an image, whatever its entry point, and leaves nothing behind."""
    engines.add(engine, "[[ $* == *from* ]] && echo c1 || true")

    engines.run("run_image t evenkeel --version", ENGINE=engine)

    assert engines.calls() == called


@pytest.mark.parametrize(
    ("engine", "called"),
    [
        ("docker", ["docker tag localhost/i:1 r.example/i:1", "docker push r.example/i:1"]),
        ("podman", ["podman push localhost/i:1 docker://r.example/i:1"]),
        ("buildah", ["buildah --storage-driver vfs push localhost/i:1 docker://r.example/i:1"]),
    ],
)
def test_each_engine_pushes(engines: Engines, engine: str, called: list[str]) -> None:
    """One function puts an image into a registry under another name."""
    engines.add(engine)

    engines.run("push_image localhost/i:1 r.example/i:1", ENGINE=engine)

    assert engines.calls() == called


def test_image_that_is_there_is_not_pulled(engines: Engines) -> None:
    """No registry is asked for an image that this machine has."""
    engines.add("docker")

    engines.run("pull_image some/base:1", ENGINE="docker")

    assert engines.calls() == ["docker image inspect some/base:1"]


def test_old_images_go(engines: Engines) -> None:
    """Of those that are named by their content the newest stay; other images and other names are left alone."""
    tags = [f"1.0-{number:012x}" for number in range(6)]
    table = ["REPOSITORY TAG", "localhost/evenkeel-store 1.0", "localhost/evenkeel-storey 1.0-0123456789ab"]
    table += [f"localhost/evenkeel-store {tag}" for tag in tags]
    lines = "\n".join(table)
    engines.add("docker", f"[[ $* != images ]] || echo '{lines}'")

    engines.run("forget_old_images localhost/evenkeel-store", ENGINE="docker")

    assert engines.calls() == ["docker images", *(f"docker rmi localhost/evenkeel-store:{tag}" for tag in tags[3:])]


def test_no_image_is_there_to_go(engines: Engines) -> None:
    """Nothing built yet is no failure."""
    engines.add("podman", "echo REPOSITORY TAG")

    engines.run("forget_old_images localhost/evenkeel-store", ENGINE="podman")

    assert engines.calls() == ["podman images"]
