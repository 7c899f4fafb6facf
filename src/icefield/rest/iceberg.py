"""Iceberg REST: URL -> catalog verb. The routes at the end are the table to read first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from icefield.access.identity import bearer_of, principal_of
from icefield.catalog import namespaces, tables
from icefield.catalog.places import Place, open_place
from icefield.model.errors import BadRequest, NoSuchSession, Unauthorized
from icefield.model.names import Address, Identifier, parse_address
from icefield.rest.http import NO_CONTENT, Request, Response, Routes, answer
from icefield.rest.wire import (
    commit_result,
    identifier_json,
    load_result,
    namespace_of,
    page,
    read_commit,
    read_identifier,
    read_namespace,
    read_properties,
    read_texts,
)
from icefield.transaction.core import Core
from icefield.transaction.sessions import Sessions

PlaceHandler = Callable[[Place, Request], Response]


class IcebergRoutes:
    def __init__(self, core: Core, sessions: Sessions, default_repo: str) -> None:
        self._core = core
        self._sessions = sessions
        self._default_repo = default_repo

    def register(self, routes: Routes) -> None:
        routes.add("GET", "/v1/config", self.config)
        for method, pattern, handler in ROUTES:
            at_place = self._at_place(handler)
            routes.add(method, "/v1/{prefix}" + pattern, at_place)
            routes.add(method, "/v1" + pattern, at_place)

    def config(self, request: Request) -> Response:
        place = self._open(request.query.get("warehouse", ""), request)
        address = Address(
            place.repo,
            ref=None if place.session is not None else _ref_of(request.query.get("warehouse", "")),
            session=place.session.id if place.session is not None else None,
        )
        return answer(
            {
                "defaults": {},
                "overrides": {"prefix": quote(str(address), safe="@~")},
                "endpoints": [f"{method} /v1/{{prefix}}{pattern}" for method, pattern, _ in ROUTES],
            }
        )

    def _at_place(self, handler: PlaceHandler) -> Callable[[Request], Response]:
        def run(request: Request) -> Response:
            return handler(self._open(request.names.get("prefix", ""), request), request)

        return run

    def _open(self, address: str, request: Request) -> Place:
        bearer = bearer_of(request.headers.get("authorization"))
        parsed = parse_address(address) if address else Address(self._default_repo)
        try:
            return open_place(self._core, self._sessions, parsed, bearer=bearer, principal=principal_of(bearer))
        except NoSuchSession as gone:
            # 404 would read as "no such table" in every client, and the reason would be lost.
            raise Unauthorized(gone.message) from None


def _ref_of(address: str) -> str | None:
    return parse_address(address).ref if address else None


def _table(request: Request) -> Identifier:
    return Identifier(namespace_of(request.names["namespace"]), request.names["table"])


def list_namespaces(place: Place, request: Request) -> Response:
    parent_text = request.query.get("parent", "")
    parent = namespace_of(parent_text) if parent_text else ()
    found, following = page(request, namespaces.list_namespaces(place, parent), lambda n: n[-1])
    return answer({"namespaces": [list(n) for n in found], "next-page-token": following})


def create_namespace(place: Place, request: Request) -> Response:
    document = request.json()
    namespace = read_namespace(document.get("namespace"), "namespace")
    properties = read_properties(document.get("properties"), "properties")
    return answer({"namespace": list(namespace), "properties": namespaces.create(place, namespace, properties)})


def load_namespace(place: Place, request: Request) -> Response:
    namespace = namespace_of(request.names["namespace"])
    return answer({"namespace": list(namespace), "properties": namespaces.load(place, namespace)})


def namespace_exists(place: Place, request: Request) -> Response:
    namespaces.load(place, namespace_of(request.names["namespace"]))
    return NO_CONTENT


def drop_namespace(place: Place, request: Request) -> Response:
    namespaces.drop(place, namespace_of(request.names["namespace"]))
    return NO_CONTENT


def update_namespace(place: Place, request: Request) -> Response:
    document = request.json()
    return answer(
        namespaces.update_properties(
            place,
            namespace_of(request.names["namespace"]),
            read_texts(document.get("removals"), "removals"),
            read_properties(document.get("updates"), "updates"),
        )
    )


def list_tables(place: Place, request: Request) -> Response:
    listed = tables.list_tables(place, namespace_of(request.names["namespace"]))
    found, following = page(request, listed, lambda i: i.name)
    return answer({"identifiers": [identifier_json(i) for i in found], "next-page-token": following})


def create_table(place: Place, request: Request) -> Response:
    loaded = tables.create(place, namespace_of(request.names["namespace"]), request.json())
    headers = [("etag", loaded.etag)] if loaded.metadata_location is not None else []
    return answer(load_result(loaded), headers=headers)


def load_table(place: Place, request: Request) -> Response:
    snapshots = request.query.get("snapshots", "all")
    if snapshots not in ("all", "refs"):
        raise BadRequest(f"snapshots must be 'all' or 'refs', not {snapshots!r}", field="snapshots")
    identifier = _table(request)
    etag = tables.etag(place, identifier, snapshots=snapshots)
    if etag in [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]:
        return Response(304, headers=[("etag", etag)])
    return answer(load_result(tables.load(place, identifier, snapshots=snapshots)), headers=[("etag", etag)])


def table_exists(place: Place, request: Request) -> Response:
    tables.etag(place, _table(request), snapshots="all")
    return NO_CONTENT


def commit_table(place: Place, request: Request) -> Response:
    (loaded,) = tables.commit(place, [read_commit(request.json(), _table(request))])
    return answer(commit_result(loaded), headers=[("etag", loaded.etag)])


def drop_table(place: Place, request: Request) -> Response:
    tables.drop(place, _table(request), purge=request.query.get("purgeRequested", "").lower() == "true")
    return NO_CONTENT


def rename_table(place: Place, request: Request) -> Response:
    document = request.json()
    tables.rename(
        place,
        read_identifier(document.get("source"), "source"),
        read_identifier(document.get("destination"), "destination"),
    )
    return NO_CONTENT


def commit_transaction(place: Place, request: Request) -> Response:
    changes: Any = request.json().get("table-changes")
    if not isinstance(changes, list):
        raise BadRequest("table-changes must be a list", field="table-changes")
    commits = []
    for number, change in enumerate(changes):
        if not isinstance(change, dict):
            raise BadRequest(f"table-changes[{number}] must be an object", field=f"table-changes[{number}]")
        commits.append(read_commit(change, None, f"table-changes[{number}]."))
    tables.commit(place, commits)
    return NO_CONTENT


def report_metrics(place: Place, request: Request) -> Response:
    request.json()
    return NO_CONTENT


ROUTES: tuple[tuple[str, str, PlaceHandler], ...] = (
    ("GET", "/namespaces", list_namespaces),
    ("POST", "/namespaces", create_namespace),
    ("GET", "/namespaces/{namespace}", load_namespace),
    ("HEAD", "/namespaces/{namespace}", namespace_exists),
    ("DELETE", "/namespaces/{namespace}", drop_namespace),
    ("POST", "/namespaces/{namespace}/properties", update_namespace),
    ("GET", "/namespaces/{namespace}/tables", list_tables),
    ("POST", "/namespaces/{namespace}/tables", create_table),
    ("GET", "/namespaces/{namespace}/tables/{table}", load_table),
    ("HEAD", "/namespaces/{namespace}/tables/{table}", table_exists),
    ("POST", "/namespaces/{namespace}/tables/{table}", commit_table),
    ("DELETE", "/namespaces/{namespace}/tables/{table}", drop_table),
    ("POST", "/namespaces/{namespace}/tables/{table}/metrics", report_metrics),
    ("POST", "/tables/rename", rename_table),
    ("POST", "/transactions/commit", commit_transaction),
)
