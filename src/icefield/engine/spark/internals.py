"""Classes of Iceberg and Spark that no document promises, and how Python reaches them: named here and nowhere else.

``PINNED`` is what a new Iceberg or Spark must still have; a contract test holds it. What is called per file goes
through functions made in Java (method handles), so that a table with many files costs no call of Py4J for each.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from icefield.engine.port import EngineFailed
from icefield.engine.spark.session import CATALOG
from icefield.engine.spark.tables import ReadTable

if TYPE_CHECKING:
    import numpy as np
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_ICEBERG = "org.apache.iceberg"
_GUAVA = f"{_ICEBERG}.relocated.com.google.common"

PINNED: dict[str, tuple[str, ...]] = {
    f"{_ICEBERG}.spark.SparkTableCache": ("get", "add", "remove"),
    f"{_ICEBERG}.spark.ScanTaskSetManager": ("get", "stageTasks", "removeTasks"),
    f"{_ICEBERG}.spark.FileRewriteCoordinator": ("get", "fetchNewFiles", "clearRewrite"),
    f"{_ICEBERG}.spark.SparkRewriteTableCatalog": (),
    f"{_ICEBERG}.spark.source.SparkTable": ("table", "schema"),
    f"{_ICEBERG}.TableUtil": ("formatVersion",),
    f"{_ICEBERG}.BaseFileScanTask": (),
    f"{_ICEBERG}.SchemaParser": ("toJson",),
    f"{_ICEBERG}.PartitionSpecParser": ("toJson",),
    f"{_ICEBERG}.expressions.ResidualEvaluator": ("unpartitioned",),
    f"{_ICEBERG}.expressions.Expressions": ("alwaysTrue",),
    f"{_ICEBERG}.data.BaseDeleteLoader": ("loadPositionDeletes",),
    f"{_ICEBERG}.data.GenericFileWriterFactory$Builder": ("deleteFileFormat", "build"),
    f"{_ICEBERG}.deletes.BaseDVFileWriter": ("delete", "close", "result"),
    f"{_ICEBERG}.deletes.Deletes": ("toPositionIndex",),
    f"{_ICEBERG}.deletes.PositionDelete": ("create", "set"),
    f"{_ICEBERG}.deletes.PositionDeleteIndex": ("merge", "cardinality", "isEmpty"),
    f"{_ICEBERG}.deletes.SortingPositionOnlyDeleteWriter": ("write", "close", "result"),
    f"{_ICEBERG}.io.OutputFileFactory": ("builderFor", "newOutputFile"),
    f"{_ICEBERG}.io.CloseableIterable": ("of",),
    f"{_ICEBERG}.util.ContentFileUtil": ("isFileScoped",),
    f"{_ICEBERG}.util.DataFileSet": ("create", "of"),
    f"{_ICEBERG}.util.DeleteFileSet": ("create", "of"),
    f"{_ICEBERG}.exceptions.CleanableFailure": (),
    f"{_GUAVA}.collect.Lists": ("newArrayList",),
    f"{_GUAVA}.primitives.Longs": ("asList",),
    "org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation": ("create",),
    "org.apache.spark.sql.classic.Dataset": ("ofRows", "toArrowBatchRdd"),
    "org.apache.spark.sql.classic.SparkSession": ("setActiveSession", "clearActiveSession"),
    "org.apache.spark.sql.catalyst.expressions.XXH64": ("hashUTF8String",),
    "org.apache.spark.unsafe.types.UTF8String": ("fromString",),
}

REWRITE_CATALOG = (
    "spark.sql.catalog.default_rewrite_catalog",
    f"{_ICEBERG}.spark.SparkRewriteTableCatalog",
)
_SPARK_SEED = 42
"""``xxhash64`` in Spark SQL starts with it."""
_SEPARATOR = "\x00"


class Jvm:
    """The driver's classes, and functions for its streams. One for all sessions of a driver."""

    _known: ClassVar[dict[int, Jvm]] = {}

    @classmethod
    def of(cls, session: SparkSession) -> Jvm:
        key = id(session._sc._gateway)
        if key not in cls._known:
            cls._known[key] = cls(session)
        return cls._known[key]

    def __init__(self, session: SparkSession) -> None:
        self.jvm: Any = session._jvm
        self.gateway: Any = session._sc._gateway
        self._classes: dict[str, Any] = {}
        self._loader = self.jvm.java.lang.Thread.currentThread().getContextClassLoader()
        self._handles = self.jvm.java.lang.invoke.MethodHandles
        self._lookup = self._handles.publicLookup()
        self._types = self.jvm.java.lang.invoke.MethodType

    @property
    def iceberg(self) -> Any:
        return self.jvm.org.apache.iceberg

    def named(self, name: str) -> Any:
        """A class's Java object. A name in lower case is a primitive's."""
        if name not in self._classes:
            primitives = {"long": "Long", "int": "Integer", "boolean": "Boolean"}
            if name in primitives:
                self._classes[name] = getattr(self.jvm.java.lang, primitives[name]).TYPE
            else:
                self._classes[name] = self.jvm.java.lang.Class.forName(name, True, self._loader)
        return self._classes[name]

    def collected(self, iterable: Any) -> Any:
        return self.iceberg.relocated.com.google.common.collect.Lists.newArrayList(iterable)

    def virtual(self, owner: str, name: str, returns: str, *arguments: str) -> Any:
        return self._lookup.findVirtual(self.named(owner), name, self._signature(returns, arguments))

    def static(self, owner: str, name: str, returns: str, *arguments: str) -> Any:
        return self._lookup.findStatic(self.named(owner), name, self._signature(returns, arguments))

    def _signature(self, returns: str, arguments: Sequence[str]) -> Any:
        types = self.jvm.java.util.ArrayList()
        for argument in arguments:
            types.add(self.named(argument))
        return self._types.methodType(self.named(returns), types)

    def then(self, first: Any, second: Any) -> Any:
        """``second(first(x))``."""
        fitting = second.asType(second.type().changeParameterType(0, first.type().returnType()))
        return self._handles.filterReturnValue(first, fitting)

    def function(self, handle: Any, interface: str = "Function") -> Any:
        wanted = self.named(f"java.util.function.{interface}")
        return self.jvm.java.lang.invoke.MethodHandleProxies.asInterfaceInstance(wanted, handle)

    @cached_property
    def file_of_task(self) -> Any:
        return self.virtual(f"{_ICEBERG}.FileScanTask", "file", f"{_ICEBERG}.ContentFile")

    @cached_property
    def path_of_file(self) -> Any:
        return self.virtual(f"{_ICEBERG}.ContentFile", "location", "java.lang.String")

    @cached_property
    def path_of_task(self) -> Any:
        return self.then(self.file_of_task, self.path_of_file)

    @cached_property
    def records_of_file(self) -> Any:
        return self.virtual(f"{_ICEBERG}.ContentFile", "recordCount", "long")

    @cached_property
    def bytes_of_file(self) -> Any:
        return self.virtual(f"{_ICEBERG}.ContentFile", "fileSizeInBytes", "long")

    @cached_property
    def deletes_of_task(self) -> Any:
        """How many delete files belong to the task."""
        return self.then(self.deletes, self.virtual("java.util.List", "size", "int"))

    @cached_property
    def deletes(self) -> Any:
        return self.virtual(f"{_ICEBERG}.FileScanTask", "deletes", "java.util.List")

    @cached_property
    def hash_of_path(self) -> Any:
        utf8 = "org.apache.spark.unsafe.types.UTF8String"
        hashes = self.static("org.apache.spark.sql.catalyst.expressions.XXH64", "hashUTF8String", "long", utf8, "long")
        seed = self.gateway.new_array(self.jvm.java.lang.Object, 1)
        seed[0] = self.jvm.java.lang.Long.valueOf(_SPARK_SEED)
        text = self.static(utf8, "fromString", utf8, "java.lang.String")
        return self.then(text, self._handles.insertArguments(hashes, 1, seed))

    def opener(self, files: Any) -> Any:
        """From a delete file to what reads it."""
        opens = self.virtual(
            f"{_ICEBERG}.io.FileIO", "newInputFile", f"{_ICEBERG}.io.InputFile", f"{_ICEBERG}.DeleteFile"
        )
        return self.function(opens.bindTo(files))

    def texts(self, items: Any, handle: Any) -> list[str]:
        """What the handle says of each item, in one call."""
        if not items.size():
            return []
        joining = self.jvm.java.util.stream.Collectors.joining(_SEPARATOR)
        joined: str = items.stream().map(self.function(self.then(handle, self._to_text))).collect(joining)
        return joined.split(_SEPARATOR)

    @cached_property
    def _to_text(self) -> Any:
        return self.static("java.lang.String", "valueOf", "java.lang.String", "java.lang.Object")

    def longs(self, items: Any, handle: Any) -> list[int]:
        return [int(text) for text in self.texts(items, handle)]

    def mapped(self, items: Any, handle: Any) -> Any:
        return items.stream().map(self.function(handle)).collect(self.jvm.java.util.stream.Collectors.toList())

    def deletes_of(self, tasks: Any) -> Any:
        """All position delete files of the tasks, each once."""
        streams = self.then(self.deletes, self.virtual("java.util.List", "stream", "java.util.stream.Stream"))
        found = tasks.stream().flatMap(self.function(streams)).collect(self.jvm.java.util.stream.Collectors.toList())
        once = self.collected(self.iceberg.util.DeleteFileSet.of(found))
        content = self.virtual(f"{_ICEBERG}.ContentFile", "content", f"{_ICEBERG}.FileContent")
        return self.among(once, self.then(content, self._to_text), ["POSITION_DELETES"])

    def among(self, items: Any, handle: Any, wanted: Sequence[str]) -> Any:
        """The items of which the handle says one of the texts."""
        collectors = self.jvm.java.util.stream.Collectors
        texts = (
            self.jvm.java.util.regex.Pattern.compile(_SEPARATOR)
            .splitAsStream(_SEPARATOR.join(wanted))
            .collect(collectors.toSet())
        )
        contains = self.virtual("java.util.Set", "contains", "boolean", "java.lang.Object").bindTo(texts)
        return (
            items.stream().filter(self.function(self.then(handle, contains), "Predicate")).collect(collectors.toList())
        )

    def lookup(self, values: Any) -> Any:
        """A map as a function."""
        return self.function(
            self.virtual("java.util.Map", "get", "java.lang.Object", "java.lang.Object").bindTo(values)
        )

    def supplier(self, value: Any) -> Any:
        return self.function(self._handles.constant(self.named("java.lang.Object"), value), "Supplier")

    def long_array(self, values: np.ndarray[Any, Any]) -> Any:
        """A ``long[]``, through a file: Py4J would carry it as text."""
        array = self.gateway.new_array(self.jvm.long, len(values))
        if not len(values):
            return array
        with tempfile.NamedTemporaryFile(prefix="icefield-positions-") as file:
            values.astype(">i8").tofile(file)
            file.flush()
            opened = self.jvm.java.io.RandomAccessFile(file.name, "r")
            try:
                # Read, not mapped: a mapping would stay until the collector finds it.
                read_only = getattr(self.jvm.java.nio.channels, "FileChannel$MapMode").READ_ONLY
                opened.getChannel().map(read_only, 0, 8 * len(values)).asLongBuffer().get(array)
            finally:
                opened.close()
        return array

    def consumer(self, target: Any, owner: str, name: str, argument: str) -> Any:
        """The method of an Iceberg object, to be called for each of a Java list."""
        returns = f"{_ICEBERG}.{owner}"
        return self.function(self.virtual(returns, name, returns, f"{_ICEBERG}.{argument}").bindTo(target), "Consumer")

    def is_a(self, thing: Any, name: str) -> bool:
        return bool(self.named(name).isInstance(thing))


def make_active(session: SparkSession) -> None:
    """Spark looks for a catalog's settings in the active session of the thread, and Iceberg for staged tasks.

    Threads inherit it and would keep the session for ever: ``make_inactive`` when the request is over.
    """
    session.conf.set(*REWRITE_CATALOG)
    session._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)


def make_inactive(session: SparkSession) -> None:
    session._jvm.org.apache.spark.sql.classic.SparkSession.clearActiveSession()


class LiveTable(ReadTable):
    """A table as the session's catalog loads it now.

    The Java object carries the load token of the statement in flight; what is committed must be committed by it.
    """

    def __init__(self, session: SparkSession, namespace: Sequence[str], name: str) -> None:
        super().__init__(session, namespace, name)
        self.java_vm = Jvm.of(session)
        jvm = self.java_vm.jvm
        make_active(session)
        folder = self.java_vm.gateway.new_array(jvm.java.lang.String, len(namespace))
        for n, part in enumerate(namespace):
            folder[n] = part
        identifier = jvm.org.apache.spark.sql.connector.catalog.Identifier.of(folder, name)
        catalog = session._jsparkSession.sessionState().catalogManager().catalog(CATALOG)
        self.spark_table: Any = catalog.loadTable(identifier)
        if not self.java_vm.is_a(self.spark_table, f"{_ICEBERG}.spark.source.SparkTable"):
            raise EngineFailed(f"{self.what} is not a table whose rows can be changed")
        self.java: Any = self.spark_table.table()
        snapshot = self.java.currentSnapshot()
        self.snapshot_id: int | None = None if snapshot is None else int(snapshot.snapshotId())
        self.format_version = int(self.java_vm.iceberg.TableUtil.formatVersion(self.java))

    @property
    def is_partitioned(self) -> bool:
        return bool(self.java.spec().isPartitioned())

    def property(self, name: str, default: str) -> str:
        return str(self.java.properties().getOrDefault(name, default))

    def schema(self) -> StructType:
        from pyspark.sql.types import StructType

        return StructType.fromJson(json.loads(self.spark_table.schema().json()))

    def files(self) -> tuple[list[str], list[int]]:
        """The paths of its data files, and their hashes."""
        tasks, java = self.tasks(), self.java_vm
        return java.texts(tasks, java.path_of_task), java.longs(tasks, java.then(java.path_of_task, java.hash_of_path))

    def tasks(self) -> Any:
        """A list of one scan task per data file of the current snapshot, with the deletes that belong to it."""
        planned = self.java.newScan().planFiles()
        try:
            return self.java_vm.collected(planned)
        finally:
            planned.close()

    def summary(self) -> dict[str, str]:
        self.java.refresh()
        return dict(self.java.currentSnapshot().summary())

    def frame(self, options: dict[str, str]) -> DataFrame:
        """The rows of this very load of the table: Spark does not load it again."""
        from pyspark.sql import DataFrame

        jvm = self.java_vm.jvm
        given = jvm.java.util.HashMap()
        for key, value in options.items():
            given.put(key, value)
        none = jvm.scala.Option.empty()
        relation = jvm.org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation.create(
            self.spark_table, none, none, jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(given), none
        )
        return DataFrame(
            jvm.org.apache.spark.sql.classic.Dataset.ofRows(self.session._jsparkSession, relation), self.session
        )


def missing(session: SparkSession) -> list[str]:
    """What is not there of the pinned classes and their methods."""
    from py4j.protocol import Py4JError

    java, gone = Jvm.of(session), []
    for name, methods in PINNED.items():
        try:
            found = {method.getName() for method in java.named(name).getMethods()}
        except Py4JError:
            gone.append(name)
            continue
        gone += [f"{name}.{method}" for method in methods if method not in found]
    return gone
