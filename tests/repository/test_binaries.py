"""The build of Go programs, with a stand-in for Go that writes down what it is asked."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from e2e.cluster.binaries import version_of
from tests.repository.tree import ROOT

TOOLS = "bash basename chmod cut dirname head mkdir mktemp mv nice rm sed sha256sum sort"
FOLDERS = sorted(folder.name for folder in (ROOT / "binaries").iterdir())

GO = """
if [ "$1" = env ]; then echo "${GO_VERSION:-go1.26.8}"; exit; fi
echo "$PWD: $*" >>"$LOG"
while [ "$1" != -o ]; do shift; done
printf '#!/bin/sh\\n' >"$2"
"""


class Machine:
    """A PATH of its own with a Go that builds in no time, and a cache."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.cache, self.log = folder / "bin", folder / "cache", folder / "log"
        self.bin.mkdir()
        for tool in TOOLS.split():
            (self.bin / tool).symlink_to(shutil.which(tool) or "")
        (self.bin / "go").write_text(f"#!{self.bin}/bash\n{GO}")
        (self.bin / "go").chmod(0o755)

    def build(self, *names: str, **environment: str) -> subprocess.CompletedProcess[str]:
        self.log.write_text("")
        environment |= {"PATH": str(self.bin), "EVENKEEL_CACHE": str(self.cache), "LOG": str(self.log)}
        command = [str(self.bin / "bash"), str(ROOT / "scripts" / "build-binaries.sh"), *names]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def built(self) -> list[str]:
        return sorted(str(file.relative_to(self.cache / "bin")) for file in self.cache.rglob("*") if file.is_file())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("folder", FOLDERS)
def test_pinned(machine: Machine, folder: str) -> None:
    """Every folder builds something, under the version that the Python side looks for, from pinned sums."""
    done = machine.build(folder)

    assert done.returncode == 0, done.stderr
    assert {path.split("/")[0] for path in machine.built()} == {f"{folder}-{version_of(folder)}"}
    module = ROOT / "binaries" / folder
    assert (module / "go.sum").exists() == ("require" in (module / "go.mod").read_text())


def test_programs_of_one_module(machine: Machine) -> None:
    """Kubernetes is one module and six programs, each of which knows its version."""
    machine.build("kubernetes")

    programs = {path.split("/")[1] for path in machine.built()}
    control_plane = {"kube-apiserver", "kube-controller-manager", "kube-scheduler"}
    assert programs == control_plane | {"kubelet", "kube-proxy", "kubectl"}
    assert machine.log.read_text().count(f"gitVersion=v{version_of('kubernetes')} ") == 6


def test_what_is_there_is_not_built_again(machine: Machine) -> None:
    """Only what the cache lacks is built, and a program that cannot run here counts as lacking."""
    machine.build("kubernetes", "pause")
    folder = machine.cache / "bin" / f"kubernetes-{version_of('kubernetes')}"
    (folder / "kubelet").unlink()
    (folder / "kubectl").write_bytes(b"\x7fELF, but of no machine")

    machine.build("kubernetes", "pause")

    built = [line.split()[-1].rpartition("/")[2] for line in machine.log.read_text().splitlines()]
    assert sorted(built) == ["kubectl", "kubelet"]


def test_cluster_is_several(machine: Machine) -> None:
    """`cluster` stands for all that a Kubernetes needs, and not for what only some tests do."""
    machine.build("cluster")

    folders = {path.split("/")[0].rpartition("-")[0] for path in machine.built()}
    assert folders == {"etcd", "kubernetes", "coredns", "pause", "helm"}


def test_unknown_name(machine: Machine) -> None:
    """A name that is not there is refused, together with those that are."""
    done = machine.build("kubernets")

    assert done.returncode == 1
    assert "unknown binary kubernets" in done.stderr
    assert "kubernetes" in done.stderr


def test_old_go(machine: Machine) -> None:
    """A Go that cannot read today's modules is refused by name; half-built programs are left nowhere."""
    done = machine.build("pause", GO_VERSION="go1.19.8")

    assert done.returncode == 1
    assert "Go 1.19.8 is too old" in done.stderr
    assert machine.built() == []
