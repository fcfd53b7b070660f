"""Flags and environment variables: accepted values, and errors that name the flag."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenkeel.errors import InvalidInputError
from evenkeel.runtime.flags import Endpoint
from evenkeel_raft.process.options import Options, parse_options

LEAST = ("--store", "s1", "--store-cluster", "main", "--data", "/data", "--advertise", "s1.example:7400")


def parse(*flags: str, **environment: str) -> Options:
    return parse_options([*LEAST, *flags], environment)


def test_defaults() -> None:
    """Few flags are required; the socket is in the data directory, and HTTP listens on loopback."""
    options = parse()
    assert (options.store, options.keys.root) == ("s1", "/evenkeel/default/main/")
    assert (options.data, options.socket) == (Path("/data"), Path("/data/raft.sock"))
    assert (options.listen, options.http) == (Endpoint("0.0.0.0", 7400), Endpoint("127.0.0.1", 7480))
    assert (options.tls, options.capacity, options.labels, options.adopt_metastore) == (None, None, {}, False)
    assert options.host.election_seconds == 1.0


def test_all_flags() -> None:
    """Every option can be set by a flag."""
    options = parse(
        *("--namespace", "prod", "--socket", "/run/s", "--listen", "[::1]:1", "--advertise", "[::1]:2"),
        *("--labels", "disk=ssd,rack=4,empty=", "--weight", "2.5", "--capacity", "0", "--bytes-per-second", "1e6"),
        *("--tls-ca", "/ca", "--tls-cert", "/c", "--tls-key", "/k", "--tls-server-name", "n"),
        *("--tick-milliseconds", "50", "--election-ticks", "20", "--keep-log-bytes", "1", "--adopt-metastore", "yes"),
        *("--snapshots-at-once", "3", "--keep-logs-bytes", "7"),
        *("--etcd-endpoints", "http://a:1,https://b:2"),
    )
    assert options.keys.root == "/evenkeel/prod/main/"
    assert (options.listen, str(options.advertise)) == (Endpoint("::1", 1), "[::1]:2")
    assert options.labels == {"disk": "ssd", "rack": "4", "empty": ""}
    assert (options.weight, options.capacity, options.host.bytes_per_second) == (2.5, 0, 1e6)
    assert options.tls is not None
    assert options.tls.server_name == "n"
    assert (options.host.tick_seconds, options.host.raft.election_ticks, options.host.keep_log_bytes) == (0.05, 20, 1)
    assert options.adopt_metastore
    assert (options.host.snapshots_at_once, options.host.keep_logs_bytes) == (3, 7)
    assert options.etcd.endpoints == ("http://a:1", "https://b:2")


def test_environment_variables() -> None:
    """Every option can be set by a variable; a flag takes precedence."""
    environment = {"EVENKEEL_STORE": "s7", "EVENKEEL_STORE_CLUSTER": "main", "EVENKEEL_DATA": "/d"}
    options = parse_options(["--store", "s9", "--listen", "10.0.0.1:7400"], environment)
    assert (options.store, options.data) == ("s9", Path("/d"))
    assert options.advertise == Endpoint("10.0.0.1", 7400)


WRONG = {
    "--store a/b": "--store 'a/b'",
    "--store-cluster  ": "--store-cluster ' '",
    "--namespace ": "--namespace ''",
    "--listen nowhere": "--listen 'nowhere'",
    "--listen :7400": "--listen ':7400'",
    "--listen h:99999": "--listen 'h:99999'",
    "--http h:x": "--http 'h:x'",
    "--advertise 0.0.0.0:7400": "--advertise 0.0.0.0:7400 is a wildcard",
    "--advertise [::]:7400": "--advertise [::]:7400 is a wildcard",
    "--weight 0": "--weight '0'",
    "--weight nan": "--weight 'nan'",
    "--weight inf": "--weight 'inf'",
    "--weight much": "--weight 'much': allowed: a number of at least 0.001",
    "--capacity -1": "--capacity '-1'",
    "--capacity 1.5": "--capacity '1.5': allowed: a whole number of at least 0",
    "--bytes-per-second 0": "--bytes-per-second '0'",
    "--snapshots-at-once 0": "--snapshots-at-once '0'",
    "--tick-milliseconds inf": "--tick-milliseconds 'inf'",
    "--election-ticks 2": "--election-ticks '2'",
    "--keep-log-bytes -1": "--keep-log-bytes '-1'",
    "--keep-logs-bytes 0": "--keep-logs-bytes '0'",
    "--lease-seconds inf": "--lease-seconds 'inf'",
    "--labels disk": "--labels 'disk'",
    "--labels =x": "--labels '=x'",
    "--adopt-metastore maybe": "--adopt-metastore 'maybe': allowed: yes, no",
    "--log-level loud": "--log-level 'loud': allowed: debug, info, warning, error",
    "--log-format xml": "--log-format 'xml'",
    "--tls-ca /ca": "--tls-ca, --tls-cert and --tls-key must be set together",
    "--etcd-endpoints ": "etcd endpoints: none given",
    "--etcd-endpoints etcd:2379": "etcd endpoint: got 'etcd:2379'",
    "--etcd-cert /c": "etcd client certificate",
    "--etcd-user u": "etcd credentials",
    "--etcd-password-file /nowhere": "--etcd-password-file /nowhere: No such file",
    "--etcd-password-file /bin/sh": "--etcd-password-file /bin/sh: it is not a text file",
}


@pytest.mark.parametrize("given", WRONG)
def test_invalid_values_are_named(given: str) -> None:
    """The error has the flag, the value and what is allowed, for flags and for variables."""
    flag, _, value = given.partition(" ")
    variable = "EVENKEEL_" + flag.removeprefix("--").upper().replace("-", "_")
    least = {name: text for name, text in zip(LEAST[::2], LEAST[1::2], strict=True) if name != flag}
    rest = [text for pair in least.items() for text in pair]
    for arguments, environment in (([*rest, f"{flag}={value}"], {}), (rest, {variable: value})):
        with pytest.raises(InvalidInputError) as refused:
            parse_options(arguments, environment)
        assert WRONG[given] in str(refused.value)


@pytest.mark.parametrize("flag", ["--store", "--store-cluster", "--data"])
def test_missing_flags_are_named(flag: str) -> None:
    """The error names the flag and its variable."""
    at = LEAST.index(flag)
    with pytest.raises(InvalidInputError, match=f"{flag} is missing: .* set EVENKEEL_"):
        parse_options([*LEAST[:at], *LEAST[at + 2 :]], {})


def test_a_wildcard_address_is_not_advertised() -> None:
    """A wildcard address cannot be advertised, because other stores would connect to themselves."""
    with pytest.raises(InvalidInputError, match=r"--advertise is missing, and --listen 0.0.0.0:7400 is a wildcard"):
        parse_options(LEAST[:6], {})


@pytest.mark.parametrize("flags", [["--stroe", "x"], ["--store"], ["what"], ["--sto", "x"]])
def test_unknown_flags_end_with_the_usage(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown and abbreviated flags are rejected."""
    with pytest.raises(SystemExit):
        parse_options([*LEAST, *flags], {})
    assert flags[0] in capsys.readouterr().err
