"""Reading YAML: what is accepted, and the messages for the rest."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.errors import InvalidInputError
from evenkeel.model.resource_loading import load_yaml, parse, read_yaml
from evenkeel.model.table import Table

ORDERS = """\
apiVersion: evenkeel.dev/v1alpha1
kind: Table
metadata:
  name: orders
spec:
  storeCluster: main
  partitions: 16
  replicas: 3
  schema:
    columns:
      - {name: id, type: int64, nullable: false}
      - {name: note, type: string}
    primaryKey: [id]
"""


def problems(text: str, source: str = "orders.yaml") -> list[str]:
    with pytest.raises(InvalidInputError) as caught:
        load_yaml(text, source)
    lines = str(caught.value).splitlines()
    assert lines == [str(problem) for problem in caught.value.problems]
    return lines


def changed(old: str, new: str) -> list[str]:
    assert old in ORDERS
    return problems(ORDERS.replace(old, new))


def test_valid_yaml() -> None:
    """A valid document becomes a model with its defaults."""
    [table] = load_yaml(ORDERS)
    assert isinstance(table, Table)
    assert (table.spec.partitions, table.spec.replicas, table.spec.voters) == (16, 3, 3)
    assert table.key == "default/orders"


def test_round_trip() -> None:
    """The document of a resource is what was read, without defaults."""
    [table] = load_yaml(ORDERS)
    assert table.document()["spec"]["schema"]["columns"][1] == {"name": "note", "type": "string"}
    assert parse(table.document()) == table


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("replicas: 3", "replicas: three", '8: spec.replicas: got "three"; allowed: an integer from 1 to 99'),
        ("replicas: 3", "replicas: 0", "8: spec.replicas: got 0; allowed: an integer from 1 to 99"),
        ("replicas: 3", "replicas: 3.5", "8: spec.replicas: got 3.5; allowed: an integer from 1 to 99"),
        ("replicas: 3", "replicas: true", "8: spec.replicas: got true; allowed: an integer from 1 to 99"),
        ("replicas: 3", "replica: 3", "8: spec.replica: unknown field; did you mean replicas?"),
        ("replicas: 3", "consensus_size: 3", "8: spec.consensus_size: unknown field; did you mean consensusSize?"),
        ("replicas: 3", "replicas:", "8: spec.replicas: got null; remove the line, or write an integer from 1 to 99"),
        (
            "partitions: 16",
            'partitions: "16"',
            '7: spec.partitions: got "16"; allowed: an integer from 1 to 1000000; drop the quotes: 16',
        ),
        (
            "storeCluster: main",
            "storeCluster: no",
            "6: spec.storeCluster: got false (written no); allowed: a DNS name: at most 63 lower-case letters, digits"
            ' and dashes, such as `orders`; to mean text, quote it: "no"',
        ),
        (
            "storeCluster: main",
            "storeCluster: 7",
            "6: spec.storeCluster: got 7; allowed: a DNS name: at most 63 lower-case letters, digits and"
            ' dashes, such as `orders`; to mean text, quote it: "7"',
        ),
        (
            "nullable: false",
            'nullable: "false"',
            '11: spec.schema.columns[0].nullable: got "false"; allowed: true or false; drop the quotes: false',
        ),
        (
            "  name: orders",
            "  name: Orders!",
            '4: metadata.name: got "Orders!"; allowed: a DNS name: at most 63 lower-case letters, digits and dashes,'
            " such as `orders`",
        ),
        ("  name: orders", "  namen: orders\n  name: orders", "4: metadata.namen: unknown field; did you mean name?"),
        ("kind: Table", "kind: Tabel", '2: kind: got "Tabel"; did you mean Table? allowed: StoreCluster, Table,'),
        ("kind: Table", "kind: [Table]", '2: kind: got ["Table"]; '),
        (
            "evenkeel.dev/v1alpha1",
            "apps/v1",
            '1: apiVersion: got "apps/v1"; allowed: evenkeel.dev/v1alpha1',
        ),
        ("kind: Table\n", "", "1: kind: missing; allowed: StoreCluster, Table, PartitionAssignment, RebalancePlan"),
        (
            "  storeCluster: main\n",
            "",
            "5: spec.storeCluster: missing; allowed: a DNS name: at most 63 lower-case letters",
        ),
        ("replicas: 3", "replicas: 3\n  replicas: 4", '9: duplicate key "replicas", first in line 8'),
        ("[id]", "[id", "14: not valid YAML: "),
        ("[id]", "!!python/name:os.system", "13: the tag tag:yaml.org,2002:python/name:os.system is not supported"),
        ("[id]", "[*ident]", "13: not valid YAML: found undefined alias 'ident'"),
        ("primaryKey: [id]", "? [a, b]\n    : c", "13: a key must be text"),
        ("replicas: 3", "on: 3", '8: the key on is not a string; quote it: "on"'),
    ],
)
def test_one_problem(old: str, new: str, problem: str) -> None:
    """A mistake is reported with file, line, field, value and remedy."""
    [found] = changed(old, new)
    assert found.startswith(f"orders.yaml:{problem}")


def test_all_problems_at_once() -> None:
    """Every problem of every document is listed, in the order of the file, and nothing is accepted."""
    bad = ORDERS.replace("16", "-1").replace("int64", "int65").replace("replicas: 3", "consensusSize: 4")
    found = problems(f"{ORDERS}---\n{bad}---\nkind: Foo\n")
    assert [line.split(": ")[:2] for line in found] == [
        ["orders.yaml:21", "spec.partitions"],
        ["orders.yaml:22", "spec.consensusSize"],
        ["orders.yaml:25", "spec.schema.columns[0].type"],
        ["orders.yaml:29", "apiVersion"],
        ["orders.yaml:29", "kind"],
    ]


def test_report_has_valid_documents() -> None:
    """`read_yaml` returns the valid documents and the problems."""
    loaded = read_yaml(f"{ORDERS}---\n- 1\n")
    assert [line for line, _ in loaded.resources] == [1]
    assert [str(problem) for problem in loaded.problems] == [
        "input:15: got [1]; allowed: a mapping with apiVersion, kind, metadata and spec"
    ]


@pytest.mark.parametrize("text", ["", "---\n---\n", "# nothing\n", "~\n"])
def test_empty(text: str) -> None:
    """Empty documents are skipped."""
    assert load_yaml(text) == []


def test_twice() -> None:
    """The same object twice in one file is refused."""
    [found] = problems(f"{ORDERS}---\n{ORDERS}")
    assert found == "orders.yaml:18: metadata.name: Table default/orders is already defined in line 1"


def test_same_name_in_other_namespace() -> None:
    """Another namespace is another object."""
    other = ORDERS.replace("name: orders", "name: orders\n  namespace: reports")
    assert [table.key for table in load_yaml(f"{ORDERS}---\n{other}")] == ["default/orders", "reports/orders"]


def test_anchors_and_merges() -> None:
    """Anchors, aliases and merge keys work, explicit keys winning."""
    text = ORDERS.replace("{name: id, type: int64, nullable: false}", "&id {name: id, type: int64, nullable: false}")
    text = text.replace("{name: note, type: string}", "{<<: *id, name: note}").replace("[id]", "[id, note]")
    [table] = load_yaml(text)
    assert isinstance(table, Table)
    assert [column.type for column in table.spec.table_schema.columns] == ["int64", "int64"]


def test_alias_bomb() -> None:
    """Aliases that multiply are stopped early, with the line."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    [found] = problems("\n".join(lines))
    assert found.endswith("aliases expand to more than 20000 values")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &a [*a]", "an anchor contains an alias of itself"),
        ("[" * 1000, "nested deeper than 64 levels"),
        ("a: !!binary aGk=", "the tag tag:yaml.org,2002:binary is not supported"),
        ("a\x00b", "unacceptable character"),
        ("a: 1\n\tb: 2", "not valid YAML"),
        ("<<: 3", "`<<` needs an alias of a mapping"),
        ("x" * (3 * 1024 * 1024 + 1), "split the file"),
        ("just text", 'got "just text"; allowed: a mapping'),
    ],
)
def test_hostile_text(text: str, words: str) -> None:
    """Abuses of YAML are refused with one line."""
    [found] = problems(text)
    assert words in found


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("0x10", 16),
        ("010", 8),
        ("0o10", 8),
        ("1_000", 1000),
        ("1e3", 1000.0),
        ("-.5", -0.5),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        (".inf", ".inf"),
        ("1e999", "1e999"),
        ("y", True),
        ("Off", False),
        ("~", None),
        ("'yes'", "yes"),
        ("9" * 50, float("9" * 50)),
    ],
)
def test_scalars_as_kubectl_reads_them(scalar: str, value: object) -> None:
    """Plain scalars have the same value as in kubectl."""
    text = ORDERS.replace(
        "schema:", f"rebalancer: {{mode: UserDefined, class: 'a:B', config: {{x: {scalar}}}}}\n  schema:"
    )
    [table] = load_yaml(text)
    assert isinstance(table, Table)
    assert table.spec.rebalancer.config == {"x": value}


def test_nulls_of_kubernetes_tools() -> None:
    """Nulls in metadata and status, as kubectl's generators write them, count as missing."""
    text = ORDERS.replace("  name: orders", "  name: orders\n  creationTimestamp: null") + "status: {progress: null}\n"
    [table] = load_yaml(text)
    assert table.metadata.creation_timestamp == ""


def test_status_of_a_newer_operator() -> None:
    """Unknown fields in a status are ignored: an older operator must read what a newer one wrote."""
    [table] = load_yaml(ORDERS + "status: {moving: 2, shinyNewField: 1}\n")
    assert isinstance(table, Table)
    assert table.status is not None
    assert table.status.moving == 2


def test_objects_of_the_api_server() -> None:
    """`parse` reads data without lines, with all metadata the API server adds."""
    [table] = load_yaml(ORDERS)
    data = table.document()
    data["metadata"] |= {
        "uid": "1",
        "resourceVersion": "7",
        "generation": 2,
        "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}],
        "finalizers": ["evenkeel.dev/data"],
    }
    assert parse(data).metadata.generation == 2
    data["spec"]["replicas"] = "three"
    with pytest.raises(InvalidInputError, match=r"^Table orders: spec\.replicas: got"):
        parse(data, "Table orders")


def test_long_values_are_cut() -> None:
    """A message has only the beginning of a long value."""
    [found] = changed("replicas: 3", f"replicas: {'x' * 500}")
    assert len(found) < 200


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    """Any text gives resources, or problems of one line each."""
    loaded = read_yaml(text)
    assert all("\n" not in str(problem) for problem in loaded.problems)


scalars = st.sampled_from(["7", "-1", "no", "~", "''", "text", "[1]", "{a: b}", "1.5", "&a x", "2Gi", "[{}]", "!x y"])
words = ("main", "16", "3", "orders", "int64", "false", "[id]", "Table", "note", "string")


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(words), scalars), min_size=1, max_size=4))
def test_any_values(edits: list[tuple[str, str]]) -> None:
    """Any field values give resources, or problems with lines."""
    text = ORDERS
    for old, new in edits:
        text = text.replace(f" {old}", f" {new}")
    assert all(problem.line > 0 for problem in read_yaml(text).problems)


def test_folded_messages_have_one_line_each() -> None:
    """A problem never spans lines, so that editors and grep can use the list."""
    for text in ("a: [\n\n\n", textwrap.dedent("a: |\n x\n b"), 'a: "\n\n'):
        assert all(line.startswith("orders.yaml") for line in problems(text))
