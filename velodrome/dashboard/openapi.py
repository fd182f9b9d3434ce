"""The API described for programs: an OpenAPI document, made of what the operations themselves declare."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from velodrome import __version__
from velodrome.dashboard.answers import Endpoint

ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {"status": {"type": "integer"}, "message": {"type": "string"}},
            "required": ["status", "message"],
        }
    },
    "required": ["error"],
}
REFUSALS = {
    "400": "called by a wrong name, or no request at all",
    "401": "no token, or a wrong one",
    "403": "asked by a page of another site",
    "404": "there is no such thing",
    "409": "it cannot be done now",
    "413": "too long",
    "415": "no JSON",
    "422": "what was said is not legal",
    "429": "too many requests",
    "503": "the server or the store is busy",
}


def document(endpoints: Iterable[Endpoint], prefix: str) -> dict[str, Any]:
    """Return the document."""
    paths: dict[str, dict[str, Any]] = {}
    for one in endpoints:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one)
    events = {"summary": "Follow what happens, as server-sent events.", "operationId": "events"}
    paths["/api/events"] = {"get": {**events, "responses": _responses(200, "text/event-stream")}}
    itself = {"summary": "Describe the API.", "operationId": "openapi", "responses": _responses(200)}
    paths["/api/openapi.json"] = {"get": itself}
    logout = {"summary": "Let the browser forget its log-in.", "operationId": "logout"}
    paths["/api/logout"] = {"post": {**logout, "responses": {"204": {"description": "done"}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Velodrome", "version": __version__, "description": "Trainings, studies and champions."},
        "servers": [{"url": prefix or "/"}],
        "security": [{"token": []}, {"cookie": []}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": "velodrome_PORT"},
            },
            "schemas": {"Error": ERROR},
        },
    }


def _operation(one: Endpoint) -> dict[str, Any]:
    schema = one.asked.model_json_schema(by_alias=True, ref_template="#/components/schemas/{model}")
    named = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)", one.path)
    ]
    identity = f"{one.method.lower()}{re.sub(r'[^A-Za-z0-9]+', '_', one.path)}".rstrip("_")
    found: dict[str, Any] = {"summary": one.summary, "operationId": identity, "tags": [one.path.split("/")[2]]}
    kind = "text/csv" if one.path.endswith(".csv") else "application/json"
    if one.method == "POST":
        body = {name: value for name, value in schema.items() if name != "title"}
        found["requestBody"] = {"content": {"application/json": {"schema": body}}}
    else:
        required = schema.get("required", ())
        named += [
            {
                "name": name,
                "in": "query",
                "required": name in required,
                "description": about.get("description", ""),
                "schema": {key: value for key, value in about.items() if key not in ("description", "title")},
            }
            for name, about in schema.get("properties", {}).items()
        ]
    return {**found, "parameters": named, "responses": _responses(one.status, kind)}


def _responses(status: int, kind: str = "application/json") -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    refused = {number: {"description": told, "content": error} for number, told in REFUSALS.items()}
    return {str(status): {"description": "done", "content": {kind: {}}}, **refused}
