"""Components that a recipe names: built-in, from installed packages, and user-defined.

A name is a built-in name, an entry point of an installed package (the group is `fieldcraft.` and
the kind, as in `fieldcraft.rewards`), or `module:Name`, which is imported. The current folder is on
the import path, like with `python -m`.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from functools import lru_cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model, field_validator

from fieldcraft.config.components import BUILTIN_COMPONENTS, REQUIRED_BASES, ComponentKind
from fieldcraft.config.moved_modules import find_current_path
from fieldcraft.config.truth_values import reject_truth_values
from fieldcraft.types import UserError

EXTENSIONS = "fieldcraft.extensions"
_WORLDS = f"{EXTENSIONS}.worlds"
MIN_SIMILARITY = 0.5  # ratio of difflib, which is 0.5 for "me" and "em"


class ComponentError(UserError):
    """The name of a component is unknown, or refers to an object of the wrong kind."""


def is_installed(module: str) -> bool:
    """Return whether a module of the kernel or of an extension is installed. The kernel works
    without its extensions."""
    if not module.startswith(f"{EXTENSIONS}."):
        return True
    extension = ".".join(module.split(".")[:3])
    return find_spec(EXTENSIONS) is not None and find_spec(extension) is not None


def list_registered(kind: ComponentKind) -> dict[str, str]:
    """Return a mapping from each registered name of a kind to its location `module:Name`."""
    worlds = _list_worlds() if kind is ComponentKind.WORLD else {}
    installed = dict(_list_entry_points(kind, tuple(sys.path)))
    return installed | worlds | dict(BUILTIN_COMPONENTS[kind])


@lru_cache(maxsize=64)  # reading the metadata of all packages takes 5 ms per name
def _list_entry_points(kind: ComponentKind, path: tuple[str, ...]) -> Mapping[str, str]:
    """Return the entry points of packages on the import path, which may change."""
    return {entry.name: entry.value for entry in entry_points(group=kind.entry_point_group)}


def list_installed_names() -> set[str]:
    """Return the names of components from installed packages, of all kinds."""
    builtin = set(_list_worlds()).union(
        *(BUILTIN_COMPONENTS.get(kind, ()) for kind in ComponentKind)
    )
    return {
        name for kind in ComponentKind for name in _list_entry_points(kind, tuple(sys.path))
    } - builtin


def _list_worlds() -> dict[str, str]:
    """Return the worlds by name. A world is a folder of extensions/worlds; the folder `name` has
    the class `NameWorld`."""
    if not is_installed(_WORLDS):
        return {}
    package = importlib.import_module(_WORLDS)
    return {
        module.name: f"{package.__name__}.{module.name}:{module.name.title()}World"
        for module in pkgutil.iter_modules(package.__path__)
        if module.ispkg
    }


def resolve(kind: ComponentKind, name: str) -> Any:
    """Return the object of a name. Raises ComponentError as `resolve_path` and `import_object`, and
    for an object of the wrong kind."""
    component = import_object(resolve_path(kind, name))
    is_preset = kind is ComponentKind.ALGORITHM and isinstance(component, Mapping)
    if kind in REQUIRED_BASES and not is_preset:
        _require_complete_class(kind, name, component)
    return component


def _require_complete_class(kind: ComponentKind, name: str, component: Any) -> None:
    base, attributes = REQUIRED_BASES[kind]
    if not (isinstance(component, type) and issubclass(component, import_object(base))):
        article, alternative = "a", ""
        if kind is ComponentKind.ALGORITHM:
            article, alternative = "an", "a mapping of keys of an rl stage, or "
        raise ComponentError(
            f"'{name}' is not {article} {kind}: make it {alternative}a subclass of"
            f" {base.replace(':', '.')}."
        )
    abstract: Collection[str] = vars(component).get("__abstractmethods__", ())
    lacks = [*sorted(abstract), *(a for a in attributes if a not in dir(component))]
    if lacks:
        raise ComponentError(f"the {kind} '{name}' is incomplete: implement {', '.join(lacks)}.")


def resolve_path(kind: ComponentKind, name: str) -> str:
    """Return `module:Name` for a name, without importing it.

    Raises ComponentError for an unknown name. The message contains the most similar one.
    """
    names = list_registered(kind)
    if name in names or ":" in name:
        return names.get(name, name)
    near = get_close_matches(name, names, n=1, cutoff=MIN_SIMILARITY)
    hint = f" (did you mean '{near[0]}'?)" if near else ""
    raise ComponentError(
        f"unknown {kind} '{name}'{hint}: use one of {', '.join(names)}, or your own module:Name."
    )


def import_object(import_path: str) -> Any:
    """Return the object at `module:Name`. Raises ComponentError if the module cannot be imported,
    or has no such name."""
    module_name, _, attribute = find_current_path(import_path).partition(":")
    is_builtin = module_name.partition(".")[0] == "fieldcraft"
    if not is_builtin and str(Path.cwd()) not in sys.path:  # files there would hide libraries
        sys.path.insert(0, str(Path.cwd()))
    if not is_installed(module_name):
        raise ComponentError(
            f"'{import_path}' is part of {EXTENSIONS}, which this installation lacks: install"
            " fieldcraft with its extensions, or use something else."
        )
    try:
        component = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a script may exit during import
        raise ComponentError(
            f"'{import_path}' cannot be used, because the import of '{module_name}' failed"
            f" ({describe_exception(error)}): correct the module, or start where Python finds it."
        ) from error
    for part in attribute.split("."):
        if part not in dir(component):
            if module_name == "__main__":
                raise ComponentError(
                    f"'{import_path}' cannot be used, because it is defined in a script that is not"
                    " running: move it to a module and import it in the script."
                )
            public = [name for name in dir(component) if not name.startswith("_")]
            raise ComponentError(
                f"'{import_path}' cannot be used, because '{module_name}' has no '{attribute}';"
                f" {suggest_name(part, public) if public else 'define it there.'}"
            )
        component = getattr(component, part)
    return component


def get_import_path(component: Any) -> str:
    """Return `module:Name` of a class, a function or a tool that is defined at module level.

    Raises UserError for other objects, because a resumed run could not find them.
    """
    owner = (
        component
        if isinstance(component, type) or inspect.isfunction(component)
        else type(component)
    )
    definition = getattr(
        component, "function", owner
    )  # a tool is found by the name of its function
    import_path = f"{definition.__module__}:{definition.__qualname__}"
    if "<" in import_path or import_object(import_path) is not component:
        raise UserError(
            f"{definition.__qualname__} must be defined at module level under that name, so"
            " that a resumed run can import it."
        )
    return import_path


def describe_exception(error: BaseException) -> str:
    """Return an exception of a user-defined component in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def get_first_line(error: BaseException) -> str:
    """Return the first line of a library's error, without final punctuation; its type if it has no
    message."""
    return str(error).strip().split("\n")[0].rstrip(".: ") or type(error).__name__


def format_short(value: object) -> str:
    """Return a representation of a value in one short line."""
    return " ".join(repr(value).split())[:60]


UTF8_ADVICE = "remove the characters that UTF-8 cannot encode"


def is_utf8(text: str) -> bool:
    """Return whether UTF-8 can encode a text: it holds no lone surrogate, such as Python has for a
    byte of an argument that is not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def replace_lone_surrogates(text: str) -> str:
    """Return a text that UTF-8 can encode: surrogate pairs are joined, and lone surrogates, such as
    half of an emoji that was cut, become U+FFFD."""
    if is_utf8(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def get_display_name(name: str) -> str:
    """Return the name of a component in files and tables: `tree` for `my_package.flows:tree`."""
    return name.rpartition(":")[2]


def validate_folder_name(name: str) -> str:
    """Return the name if it is a valid folder name. Raises ValueError for paths and unprintable
    names."""
    if not name.strip() or not name.isprintable() or name.startswith(".") or {*"/\\"} & {*name}:
        raise ValueError("it is used as a folder name: use only letters, digits, - and _")
    return name


def suggest_name(name: str, names: Collection[str], prefix: str = "") -> str:
    """Return a question with the most similar name, or all names if none is similar. Each name gets
    the prefix."""
    if not names:
        return "leave it out: none is accepted there."
    near = get_close_matches(name, names, n=1, cutoff=MIN_SIMILARITY)
    if near:
        return f"did you mean '{prefix}{near[0]}'?"
    return f"use one of {', '.join(prefix + name for name in names)}."


def _find_init_owner(component: type) -> type:
    """Return the class that defines the constructor of a class, which may be inherited."""
    return next(base for base in component.__mro__ if "__init__" in vars(base))


def make_settings_model(component: Any, provided: Collection[str] = ()) -> type[BaseModel]:
    """Return a model of the settings of a class or a function: its parameters with their types and
    defaults, except those that are `provided` by the framework."""
    signature_source = (
        vars(_find_init_owner(component))["__init__"] if isinstance(component, type) else component
    )
    hints = get_type_hints(signature_source, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(component).parameters.values():
        if parameter.name in provided or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints.get(parameter.name, Any), default)
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, frozen=True)
    return create_model(
        f"settings of {component.__name__}",
        __config__=config,
        __validators__={"truth_values": field_validator("*", mode="wrap")(reject_truth_values)},
        **fields,
    )
