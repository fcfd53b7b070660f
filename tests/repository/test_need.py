"""The check of the machine, on machines made up of stand-in commands."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.repository.tree import ROOT

PLAIN_TOOLS = ("awk", "chmod", "df", "dirname", "head", "sed", "sort")


@dataclass(frozen=True)
class Machine:
    """A PATH of its own; what is not put on it does not exist."""

    bin: Path

    def command(self, name: str, script: str) -> None:
        file = self.bin / name
        file.write_text(f"#!{shutil.which('bash')}\n{script}\n")
        file.chmod(0o755)

    def need(self, *things: str) -> subprocess.CompletedProcess[str]:
        bash = shutil.which("bash")
        assert bash is not None
        command = [bash, str(ROOT / "scripts" / "need.sh"), *things]
        return subprocess.run(command, env={"PATH": str(self.bin)}, capture_output=True, text=True, check=False)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    for tool in PLAIN_TOOLS:
        (tmp_path / tool).symlink_to(shutil.which(tool) or "")
    return Machine(tmp_path)


def as_user(machine: Machine) -> None:
    machine.command("id", "echo 1000")
    machine.command("apt-get", "echo apt-get must not be called; exit 1")


def as_root(machine: Machine, *, apt_installs: str) -> Path:
    """Let apt-get write down what it is asked, and then provide what `apt_installs` says."""
    asked = machine.bin / "apt.log"
    machine.command("id", "echo 0")
    machine.command("apt-get", f'echo "$*" >>"{asked}"\n[ "$1" = update ] && exit\n{apt_installs}')
    return asked


def test_nothing_is_said_where_nothing_lacks(machine: Machine) -> None:
    """A machine that has everything is left alone, silently."""
    machine.command("python3.12", "exit 0")
    machine.command("openssl", "exit 0")
    machine.command("go", "echo go1.26.8")
    machine.command("java", """echo 'openjdk version "21.0.3" 2024-04-16' >&2""")

    done = machine.need("disk=1", "python", "openssl", "go", "java")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_user_gets_one_command(machine: Machine) -> None:
    """Without root rights, everything that lacks is named together with the one command that installs it."""
    as_user(machine)

    done = machine.need("python", "openssl", "java")

    assert done.returncode == 1
    assert "Python >= 3.11 with venv and ensurepip, openssl, Java >= 17" in done.stderr
    assert "run: sudo apt-get install -y python3 python3-venv openssl openjdk-17-jre-headless\n" in done.stderr


def test_root_installs_what_lacks(machine: Machine) -> None:
    """Root updates the lists once and installs only what is not there."""
    machine.command("openssl", "exit 0")
    provide = f'printf "#!/bin/sh\\n" >"{machine.bin}/python3"; chmod +x "{machine.bin}/python3"'
    asked = as_root(machine, apt_installs=provide)

    assert machine.need("python", "openssl").returncode == 0

    assert asked.read_text().splitlines() == [
        "update -qq",
        "install -qq -y --no-install-recommends python3 python3-venv",
    ]


def test_packages_too_old_are_said_so(machine: Machine) -> None:
    """What apt installed is checked again: a distribution with an older Go is not taken for a success."""
    provide = f'printf "#!/bin/sh\\necho go1.19.8\\n" >"{machine.bin}/go"; chmod +x "{machine.bin}/go"'
    as_root(machine, apt_installs=provide)

    done = machine.need("go")

    assert done.returncode == 1
    assert "packages are too old for: Go >= 1.21" in done.stderr


@pytest.mark.parametrize(
    ("name", "script"),
    [
        ("python3.13", "echo 'not a Python, only a stand-in' >&2; exit 127"),
        ("go", "echo go1.20.14"),
        ("java", """echo 'java version "1.8.0_392"' >&2"""),
    ],
)
def test_present_but_unfit_counts_as_missing(machine: Machine, name: str, script: str) -> None:
    """A command of the right name that is too old, or does not run, is not what is needed."""
    as_user(machine)
    machine.command(name, script)

    assert machine.need(name.rstrip(".0123456789")).returncode == 1


def test_disk_space_is_checked_first(machine: Machine) -> None:
    """A full disk is reported before anything is installed on it."""
    as_user(machine)

    done = machine.need("disk=999999999", "python")

    assert done.returncode == 1
    assert "999999999 MiB are needed" in done.stderr
    assert "python3-venv" not in done.stderr
