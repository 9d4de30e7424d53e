"""Asks a reader all questions about tables: ``python -m tests.readers.asking READER < tables > answers``, both pickled.

Each reader is imported only where it is asked, so that this runs in the environment of any.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.readers.truth import AGGREGATES, ROW, Asked, Question, is_right, right_answers

Ask = Callable[[Question], Any]
"""Gives the offsets of a question's rows, or its aggregate, as Python has them."""


class Tally(NamedTuple):
    """What became of a reader's questions, each with table, question, and reason or answer."""

    asked: int
    right: int
    refused: tuple[tuple[str, Question, str], ...]
    wrong: tuple[tuple[str, Question, Any], ...]


def asked(reader: str, tables: Iterable[Asked]) -> Tally:
    """Ask ``reader`` all questions about ``tables``."""
    count, right = 0, 0
    refused: list[tuple[str, Question, str]] = []
    wrong: list[tuple[str, Question, Any]] = []
    for table in tables:
        try:
            ask = READERS[reader](table)
        except NotForThis:
            continue
        except Exception as error:  # noqa: BLE001 - told, as each refusal
            ask = _refusing(error)
        for question in table.questions:
            try:
                answer = ask(question)
            except NotForThis:
                continue
            except Exception as error:  # noqa: BLE001 - as above
                count += 1
                refused.append((table.name, question, f"{type(error).__name__}: {error}"[:300]))
                continue
            count += 1
            if is_right(answer, right_answers(table.rows, question)):
                right += 1
            else:
                wrong.append((table.name, question, answer if len(repr(answer)) < 500 else repr(answer)[:500]))
    return Tally(count, right, tuple(refused), tuple(wrong))


class NotForThis(Exception):
    """The reader has no such operator, or its recipe is not for this table."""


def _refusing(error: Exception) -> Ask:
    def ask(_question: Question) -> Any:
        raise error

    return ask


def _found(table: Any, question: Question) -> Any:
    """The answer in an Arrow table of one column, or of the rows."""
    if question.operator in AGGREGATES:
        [[value]] = [table.column(0).to_pylist()]
        return value
    return sorted(table.column(ROW).to_pylist())


def _reduced(table: Any, question: Question) -> Any:
    """The answer in the Arrow table that a filter gave; Arrow makes the aggregates."""
    import pyarrow.compute as pc

    if question.operator not in AGGREGATES:
        return _found(table, question)
    column = table.column(question.column)
    return getattr(pc, question.operator)(column).as_py()


def _expression(question: Question) -> Any:
    """The question as pyarrow's datasets have it; None for an aggregate."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    field, operands = ds.field(question.column), question.operands
    make: Mapping[str, Callable[[], Any]] = {
        "=": lambda: field == operands[0],
        "!=": lambda: field != operands[0],
        "<": lambda: field < operands[0],
        ">=": lambda: field >= operands[0],
        "in": lambda: field.isin(pa.array(operands)),
        "null": field.is_null,
        "not null": field.is_valid,
        "like": lambda: pc.match_like(field, operands[0]),
        "between": lambda: (field >= operands[0]) & (field <= operands[1]),
    }
    if question.operator in AGGREGATES:
        return None
    found = make[question.operator]()
    return found if question.dt is None else found & (ds.field("dt") == question.dt)


def _columns(question: Question) -> list[str]:
    return [question.column] if question.operator in AGGREGATES else [ROW]


def _dataset(dataset: Any) -> Ask:
    """A dataset of pyarrow's."""
    return lambda question: _reduced(
        dataset.to_table(columns=_columns(question), filter=_expression(question)), question
    )


def _filters(question: Question) -> list[tuple[str, str, Any]] | None:
    """The question as a list of tuples, which has no tests for null; None for an aggregate."""
    if question.operator in AGGREGATES:
        return None
    operands = question.operands
    match question.operator:
        case "null" | "not null" | "like":
            raise NotForThis
        case "between":
            found = [(question.column, ">=", operands[0]), (question.column, "<=", operands[1])]
        case "in":
            found = [(question.column, "in", list(operands))]
        case operator:
            found = [(question.column, operator, operands[0])]
    return found if question.dt is None else [*found, ("dt", "=", question.dt)]


def _delta_rs(table: Asked) -> Ask:
    from deltalake import DeltaTable

    delta = DeltaTable(table.url)
    return lambda question: _reduced(
        delta.to_pyarrow_table(columns=_columns(question), filters=_filters(question)), question
    )


def _delta_rs_dataset(table: Asked) -> Ask:
    from deltalake import DeltaTable

    return _dataset(DeltaTable(table.url).to_pyarrow_dataset())


def _delta_rs_queries(table: Asked) -> Ask:
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    builder = QueryBuilder().register("t", DeltaTable(table.url))
    return lambda question: _found(pa.table(builder.execute(_sql(question, "t", _DATAFUSION)).read_all()), question)


def _polars_expression(question: Question) -> Any:
    import polars as pl

    column, operands = pl.col(question.column), question.operands
    make: Mapping[str, Callable[[], Any]] = {
        "=": lambda: column == operands[0],
        "!=": lambda: column != operands[0],
        "<": lambda: column < operands[0],
        ">=": lambda: column >= operands[0],
        "in": lambda: column.is_in(list(operands)),
        "null": column.is_null,
        "not null": column.is_not_null,
        "like": lambda: column.str.contains(_regular(operands[0])),
        "between": lambda: column.is_between(pl.lit(operands[0]), pl.lit(operands[1])),
    }
    found = make[question.operator]()
    return found if question.dt is None else found & (pl.col("dt") == question.dt)


def _regular(pattern: str) -> str:
    import re

    inner = "".join({"%": ".*", "_": "."}.get(char, re.escape(char)) for char in pattern)
    return f"(?s)^{inner}$"


def _lazy(frame: Any) -> Ask:
    """A lazy frame of Polars'."""
    import polars as pl

    def ask(question: Question) -> Any:
        if question.operator in AGGREGATES:
            return frame.select(getattr(pl.col(question.column), question.operator)()).collect().item()
        return sorted(frame.filter(_polars_expression(question)).select(ROW).collect()[ROW].to_list())

    return ask


def _polars(table: Asked) -> Ask:
    import polars as pl

    return _lazy(pl.scan_delta(table.url))


def _polars_pyarrow(table: Asked) -> Ask:
    import polars as pl

    return _lazy(pl.scan_delta(table.url, use_pyarrow=True))


class Dialect(NamedTuple):
    """The ways in which an engine's SQL writes a value of a type of Python's."""

    binary: Callable[[bytes], str]
    moment: Callable[[datetime], str]
    number: Callable[[float], str]
    decimal: Callable[[Decimal], str] = "{:f}".format
    day: Callable[[date], str] = lambda day: f"DATE '{day.isoformat()}'"
    text: Callable[[str], str] = lambda text: "'" + text.replace("'", "''") + "'"
    quote: str = '"'

    def written(self, value: Any) -> str:
        """The value as SQL."""
        match value:
            case bool() | int():
                return str(value)
            case float():
                return self.number(value)
            case Decimal():
                return self.decimal(value)
            case bytes():
                return self.binary(value)
            case datetime():
                return self.moment(value)
            case date():
                return self.day(value)
            case _:
                return self.text(value)


def _sql(question: Question, table: str, dialect: Dialect) -> str:
    column = f"{dialect.quote}{question.column}{dialect.quote}"
    if question.operator in AGGREGATES:
        return f"SELECT {question.operator}({column}) AS found FROM {table}"  # noqa: S608 - the tests' own names
    operands = [dialect.written(operand) for operand in question.operands]
    condition = {
        "in": lambda: f"{column} IN ({', '.join(operands)})",
        "null": lambda: f"{column} IS NULL",
        "not null": lambda: f"{column} IS NOT NULL",
        "like": lambda: f"{column} LIKE {operands[0]}",
        "between": lambda: f"{column} BETWEEN {operands[0]} AND {operands[1]}",
    }.get(question.operator, lambda: f"{column} {question.operator} {operands[0]}")()
    if question.dt is not None:
        condition += f" AND dt = {dialect.written(question.dt)}"
    return f"SELECT {ROW} FROM {table} WHERE {condition}"  # noqa: S608 - as above


def _scale(number: Decimal) -> int:
    return len(f"{number:f}".partition(".")[2])


_DATAFUSION: Final = Dialect(
    binary=lambda value: f"x'{value.hex()}'",
    moment=lambda moment: f"arrow_cast('{moment.isoformat()}', 'Timestamp(Microsecond, Some(\"UTC\"))')",
    number=lambda number: f"CAST('{number!r}' AS DOUBLE)",
    decimal=lambda number: f"arrow_cast('{number:f}', 'Decimal128(38, {_scale(number)})')",
)
_DUCKDB: Final = Dialect(
    binary=lambda value: "'" + "".join(f"\\x{byte:02X}" for byte in value) + "'::BLOB",
    moment=lambda moment: f"TIMESTAMPTZ '{moment.isoformat(sep=' ')}'",
    number=lambda number: f"'{number!r}'::DOUBLE",
)
_SPARK: Final = Dialect(
    binary=lambda value: f"X'{value.hex()}'",
    moment=lambda moment: f"TIMESTAMP '{moment.isoformat(sep=' ')}'",
    number=lambda number: f"DOUBLE('{number!r}')",
    decimal=lambda number: f"{number:f}BD",
    text=lambda text: "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'",
    quote="`",
)
_CLICKHOUSE: Final = Dialect(
    binary=lambda value: f"unhex('{value.hex()}')",
    moment=lambda moment: f"toDateTime64('{moment:%Y-%m-%d %H:%M:%S.%f}', 6, 'UTC')",
    number=lambda number: f"toFloat64('{number!r}')",
    decimal=lambda number: f"toDecimal128('{number:f}', {_scale(number)})",
    day=lambda day: f"toDate32('{day.isoformat()}')",
    text=lambda text: "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'",
)


def _duckdb(source: Callable[[Any, Asked], str]) -> Callable[[Asked], Ask]:
    """DuckDB over what ``source`` names, once in its session."""

    def opened(table: Asked) -> Ask:
        import duckdb

        connection = duckdb.connect()
        connection.execute("SET TimeZone = 'UTC'")
        name = source(connection, table)

        def ask(question: Question) -> Any:
            return _found(connection.execute(_sql(question, name, _DUCKDB)).to_arrow_table(), question)

        return ask

    return opened


def _paths(table: Asked) -> list[str]:
    return [url.removeprefix("file://") for url in table.files]


_DUCKDB_TYPES: Final = {"string": "VARCHAR", "boolean": "BOOLEAN", "int32": "INTEGER", "date": "DATE"}


def _hive_types(table: Asked) -> str:
    named = ", ".join(f"'{name}': {_DUCKDB_TYPES[table.types[name]]}" for name in table.partitions)
    return f", hive_partitioning = true, hive_types = {{{named}}}" if named else ""


def _duckdb_files(_connection: Any, table: Asked) -> str:
    return f"read_parquet({_paths(table)!r}, union_by_name = true{_hive_types(table)})"


def _duckdb_directory(_connection: Any, table: Asked) -> str:
    return f"read_parquet('{_at_rest(table)}/**/*.parquet', union_by_name = true{_hive_types(table)})"


def _at_rest(table: Asked) -> Path:
    """The table's directory, if it has live files only: its readers are said to see replaced files, too."""
    folder = Path(table.url.removeprefix("file://"))
    if len([*folder.glob("**/*.parquet")]) != len(table.files):
        raise NotForThis
    return folder


def _extension(connection: Any, name: str) -> None:
    [folder] = import_module(f"duckdb_extension_{name}").__path__
    version = import_module("duckdb").__version__
    connection.load_extension(f"{folder}/extensions/v{version}/{name}.duckdb_extension")


def _duckdb_delta(connection: Any, table: Asked) -> str:
    _extension(connection, "delta")
    return f"delta_scan('{table.url}')"


def _duckdb_iceberg(connection: Any, table: Asked) -> str:
    _extension(connection, "avro")
    _extension(connection, "iceberg")
    return f"iceberg_scan('{table.metadata}')"


def _duckdb_dataset(connection: Any, table: Asked) -> str:
    from deltalake import DeltaTable

    connection.register("of_delta_rs", DeltaTable(table.url).to_pyarrow_dataset())
    return "of_delta_rs"


def _folder_schema(table: Asked) -> Any:
    import pyarrow as pa

    types: Mapping[str, Any] = {"string": pa.string(), "boolean": pa.bool_(), "int32": pa.int32(), "date": pa.date32()}
    return pa.schema([(name, types[table.types[name]]) for name in table.partitions])


def _pyarrow(table: Asked) -> Ask:
    """The live files, with the columns of the Delta log."""
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyarrow import dataset

    columns: Any = DeltaTable(table.url).schema().to_arrow()
    schema = pa.schema(columns)
    partitioning = dataset.partitioning(_folder_schema(table), flavor="hive") if table.partitions else None
    base = table.url.removeprefix("file://")
    return _dataset(dataset.dataset(_paths(table), schema=schema, partitioning=partitioning, partition_base_dir=base))


def _pandas(table: Asked) -> Ask:
    import pyarrow as pa
    from deltalake import DeltaTable

    pandas: Any = import_module("pandas")
    delta = DeltaTable(table.url)

    def ask(question: Question) -> Any:
        columns = _columns(question)
        found = delta.to_pandas(columns=columns, filters=_filters(question), types_mapper=pandas.ArrowDtype)
        return _reduced(pa.Table.from_pandas(found, preserve_index=False), question)

    return ask


def _pyiceberg(table: Asked) -> Ask:
    from pyiceberg.table import StaticTable

    iceberg: Any = import_module("pyiceberg.expressions")
    static = StaticTable.from_metadata(table.metadata)

    def literal(value: Any) -> Any:
        return value.isoformat() if isinstance(value, date) else value

    def ask(question: Question) -> Any:
        name, operands = question.column, [literal(operand) for operand in question.operands]
        make: Mapping[str, Callable[[], Any]] = {
            "=": lambda: iceberg.EqualTo(name, operands[0]),
            "!=": lambda: iceberg.And(iceberg.NotEqualTo(name, operands[0]), iceberg.NotNull(name)),
            "<": lambda: iceberg.LessThan(name, operands[0]),
            ">=": lambda: iceberg.GreaterThanOrEqual(name, operands[0]),
            "in": lambda: iceberg.In(name, operands),
            "null": lambda: iceberg.IsNull(name),
            "not null": lambda: iceberg.NotNull(name),
            "between": lambda: iceberg.And(
                iceberg.GreaterThanOrEqual(name, operands[0]), iceberg.LessThanOrEqual(name, operands[1])
            ),
        }
        if question.operator == "like":
            raise NotForThis
        condition: Any = iceberg.AlwaysTrue() if question.operator in AGGREGATES else make[question.operator]()
        if question.dt is not None:
            condition = iceberg.And(condition, iceberg.EqualTo("dt", literal(question.dt)))
        found = static.scan(row_filter=condition, selected_fields=tuple(_columns(question))).to_arrow()
        return _reduced(found, question)

    return ask


def _datafusion(register: Callable[[Any, Asked], None]) -> Callable[[Asked], Ask]:
    def opened(table: Asked) -> Ask:
        import pyarrow as pa

        context = import_module("datafusion").SessionContext()
        register(context, table)
        return lambda question: _found(
            pa.table(context.sql(_sql(question, "t", _DATAFUSION)).to_arrow_table()), question
        )

    return opened


def _datafusion_provider(context: Any, table: Asked) -> None:
    from deltalake import DeltaTable

    context.register_table("t", DeltaTable(table.url))


def _datafusion_dataset(context: Any, table: Asked) -> None:
    from deltalake import DeltaTable

    context.register_dataset("t", DeltaTable(table.url).to_pyarrow_dataset())


def _datafusion_listing(context: Any, table: Asked) -> None:
    context.register_listing_table("t", str(_at_rest(table)), schema=None)


def _daft(open_table: Callable[[Any, Asked], Any]) -> Callable[[Asked], Ask]:
    def opened(table: Asked) -> Ask:
        daft: Any = import_module("daft")
        frame = open_table(daft, table)

        def ask(question: Question) -> Any:
            column = daft.col(question.column)
            if question.operator in AGGREGATES:
                return _found(frame.agg(getattr(column, question.operator)()).to_arrow(), question)
            operands = question.operands
            make: Mapping[str, Callable[[], Any]] = {
                "=": lambda: column == daft.lit(operands[0]),
                "!=": lambda: column != daft.lit(operands[0]),
                "<": lambda: column < daft.lit(operands[0]),
                ">=": lambda: column >= daft.lit(operands[0]),
                "in": lambda: column.is_in(list(operands)),
                "null": column.is_null,
                "not null": column.not_null,
                "like": lambda: column.like(operands[0]),
                "between": lambda: column.between(daft.lit(operands[0]), daft.lit(operands[1])),
            }
            found = make[question.operator]()
            if question.dt is not None:
                found = found & (daft.col("dt") == daft.lit(question.dt))
            return _found(frame.where(found).select(ROW).to_arrow(), question)

        return ask

    return opened


def _chdb(source: Callable[[Asked], str]) -> Callable[[Asked], Ask]:
    def opened(table: Asked) -> Ask:
        import pyarrow as pa

        chdb: Any = import_module("chdb")

        def ask(question: Question) -> Any:
            query = _sql(question, source(table), _CLICKHOUSE)
            body = chdb.query(query, "ArrowStream").bytes()
            found = _found(pa.ipc.open_stream(body).read_all(), question)
            return found.encode() if isinstance(found, str) and table.types[question.column] == "binary" else found

        return ask

    return opened


def _chdb_files(table: Asked) -> str:
    paths = _paths(table)
    common = os.path.commonpath(paths)
    names = ",".join(path.removeprefix(f"{common}/") for path in paths)
    return f"file('{common}/{{{names}}}', Parquet)" if len(paths) > 1 else f"file('{common}', Parquet)"


def _spark(table: Asked, frame: Callable[[Any, Asked], Any]) -> Ask:
    from pyspark.sql import SparkSession

    session = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    frame(session, table).createOrReplaceTempView("t")
    return lambda question: _found(session.sql(_sql(question, "t", _SPARK)).toArrow(), question)


def _spark_delta(session: Any, table: Asked) -> Any:
    return session.read.format("delta").load(table.url)


def _spark_files(session: Any, table: Asked) -> Any:
    session.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
    read = session.read.option("basePath", table.url).option("mergeSchema", "true").parquet(*table.files)
    types = {"int32": "int"}
    casts = {name: f"cast({name} AS {types.get(table.types[name], table.types[name])})" for name in table.partitions}
    return read.selectExpr(*(f"{casts.get(name, name)} AS {name}" for name in read.columns))


READERS: Final[Mapping[str, Callable[[Asked], Ask]]] = {
    "delta-rs": _delta_rs,
    "delta-rs, as a dataset": _delta_rs_dataset,
    "delta-rs, by SQL": _delta_rs_queries,
    "Polars": _polars,
    "Polars, by pyarrow": _polars_pyarrow,
    "DuckDB": _duckdb(_duckdb_files),
    "DuckDB, over the directory": _duckdb(_duckdb_directory),
    "DuckDB, by delta_scan": _duckdb(_duckdb_delta),
    "DuckDB, over delta-rs": _duckdb(_duckdb_dataset),
    "DuckDB, over Iceberg's metadata": _duckdb(_duckdb_iceberg),
    "pyarrow": _pyarrow,
    "delta-rs, to pandas": _pandas,
    "pyiceberg": _pyiceberg,
    "DataFusion, delta-rs's provider": _datafusion(_datafusion_provider),
    "DataFusion, delta-rs's dataset": _datafusion(_datafusion_dataset),
    "DataFusion, its listing": _datafusion(_datafusion_listing),
    "Daft, the Delta table": _daft(lambda daft, table: daft.read_deltalake(table.url)),
    "Daft, the files": _daft(lambda daft, table: daft.read_parquet(_paths(table))),
    "chDB, the files": _chdb(_chdb_files),
    "Spark, with Delta's reader": lambda table: _spark(table, _spark_delta),
    "Spark, over the live files": lambda table: _spark(table, _spark_files),
}
"""All readers, by the names of the sections in docs/reading.md where it has one."""


def main() -> None:
    """Answer by pickle: a :class:`Tally` for each reader that is named."""
    tables: Sequence[Asked] = pickle.load(sys.stdin.buffer)  # noqa: S301 - the tests' own
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    out.write(pickle.dumps({reader: tuple(asked(reader, tables)) for reader in sys.argv[1:]}))
    out.flush()
    os._exit(0)  # threads of an engine may abort the interpreter's own end


if __name__ == "__main__":
    main()
