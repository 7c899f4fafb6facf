"""An ordinary Spark with Iceberg's runtime and a REST catalog per address: no SDK, nothing of ours but the launcher.

In a process of its own, so that its session and conf are nobody else's. As a script it answers a JSON line per line:
{"sql": "..."} -> {"rows": [[...]]} or {"error": "...", "kind": "..."}.
"""

from __future__ import annotations

import datetime
import decimal
import json
import subprocess
import sys
from typing import Any


class SparkFailed(Exception):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message = kind, message


class SparkClient:
    def __init__(self, url: str, catalogs: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, url, json.dumps(catalogs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def sql(self, statement: str) -> list[list[Any]]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"sql": statement}) + "\n")
        self.process.stdin.flush()
        while line := self.process.stdout.readline():
            if line.startswith("{"):
                answer = json.loads(line)
                if "error" in answer:
                    raise SparkFailed(answer["kind"], answer["error"])
                return list(answer["rows"])
        raise AssertionError("Spark ended")

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


def _plain(value: Any) -> Any:
    if isinstance(value, (datetime.date, datetime.datetime, decimal.Decimal)):
        return str(value)
    return value


def _main() -> None:
    from icefield.engine.spark.session import Binding, start_spark

    url, catalogs = sys.argv[1], json.loads(sys.argv[2])
    conf: dict[str, str] = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
    for name, address in catalogs.items():
        conf |= Binding(url, address).conf(name)
    spark = start_spark("ordinary-spark", conf)
    spark.sparkContext.setLogLevel("OFF")
    for line in sys.stdin:
        try:
            rows = [[_plain(v) for v in row] for row in spark.sql(json.loads(line)["sql"]).collect()]
            answer: dict[str, Any] = {"rows": rows}
        except Exception as error:
            answer = {"error": str(error).split("\n\tat ")[0][:2000], "kind": type(error).__name__}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _main()
