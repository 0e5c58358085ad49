"""Worker process that validates values against JSON schemas of servers: a pattern may run forever.

A request is {"schema": {...}} or {"schema": {...}, "value": ...}. The reply is {"wrong": "..."},
the error of the schema or else of the value, or {"wrong": null}.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jsonschema.exceptions import SchemaError, best_match
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from fieldcraft.tools.killable_worker import serve_requests


def _validate(question: dict[str, Any]) -> Iterator[dict[str, Any]]:
    schema = question["schema"]
    validator_class = validator_for(schema)
    try:
        if "value" in question:
            # An empty registry, so that references are never fetched from the network.
            validator = validator_class(schema, registry=Registry())
            yield {"wrong": _describe_error(best_match(validator.iter_errors(question["value"])))}
        else:
            validator_class.check_schema(schema)
            yield {"wrong": None}
    except SchemaError as error:
        yield {"wrong": error.message}
    except Unresolvable as error:
        yield {"wrong": f"it refers to {error.ref!r}, which is not in it"}
    except RecursionError:
        yield {"wrong": "it refers to itself without end"}


def _describe_error(error: Any) -> str | None:
    if error is None:
        return None
    return "".join(f"{part}: " for part in error.absolute_path) + str(error.message)


if __name__ == "__main__":
    serve_requests(_validate)
