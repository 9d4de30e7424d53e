"""Names of columns that some catalog could not list are refused, with the reason."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.tidemark.parsers.support import topic_of
from tidemark.errors import ConfigError
from tidemark.parsers.column_names import check_columns
from tidemark.parsers.factory import parser_of

LIST = pa.field("tags", pa.list_(pa.string()))
STRUCT = pa.field("user", pa.struct([("id", pa.int64()), ("to.name", pa.string())]))


@pytest.mark.parametrize(
    ("columns", "rule"),
    [
        ([LIST, pa.field("tags.element", pa.string())], "column 'tags.element': .* a part of the column tags"),
        ([pa.field("Tags.Element", pa.string()), LIST], "column 'Tags.Element': .* a part of the column tags"),
        ([STRUCT, pa.field("user.id", pa.string())], "column 'user.id': .* a part of the column user"),
        ([STRUCT, pa.field("user.to.name", pa.string())], "user.to.name"),
        ([pa.field("é" * 128, pa.string())], "255 bytes"),
        ([pa.field("a\x01", pa.string())], "control characters"),
        ([pa.field("a\x7f", pa.string())], "control characters"),
    ],
)
def test_what_no_catalog_can_list_is_refused(columns: list[pa.Field[pa.DataType]], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        check_columns(columns)


def test_points_and_any_script_are_allowed() -> None:
    check_columns(
        [LIST, STRUCT, *(pa.field(name, pa.string()) for name in ("http.method", "user.", "日本", "x" * 255))]
    )


def test_a_parser_of_such_columns_is_refused() -> None:
    """So is a registry's schema, for whose columns the same parser is made before it is adopted."""
    settings = "kind: json\ncolumns: [{name: tags, type: list<string>}, {name: tags.element, type: string, path: [t]}]"
    with pytest.raises(
        ConfigError, match=r"topic orders: parser\.json: column 'tags\.element': catalogs do not tell it"
    ):
        parser_of(topic_of(settings).parser, "orders")
