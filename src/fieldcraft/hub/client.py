"""The hub's own client, and what it raises as sentences.

HF_ENDPOINT says where the hub is, HF_TOKEN who asks, and HF_HUB_OFFLINE that it must not be asked,
as everywhere. No header, token or address with a password gets into a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fieldcraft.config.hub_names import HubDataset, HubModel, get_hub_cache
from fieldcraft.config.url_secrets import mask_secrets
from fieldcraft.types import UserError


class HubUnreachableError(UserError):
    """The hub does not answer, or must not be asked."""


@contextmanager
def raise_hub_errors(repository: HubModel | HubDataset) -> Iterator[None]:
    """Ask the hub for a model or a data set inside the block. Raises UserError with the cause and
    the remedy where it does not give it, HubUnreachableError where it cannot be asked."""
    import httpx2
    from huggingface_hub import constants, errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise UserError(
            f"{repository} is gated: ask for access at {_make_page_url(repository)}, then set"
            " HF_TOKEN to a token of the account that has it."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise UserError(
            f"{_describe_missing(repository)} {get_hub_address()} has nothing of that name that you"
            " may read: correct the name or, if it is private, set HF_TOKEN to a token of an"
            " account that may read it."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UserError(
            f"{repository.name} has no revision '{repository.revision}' at {get_hub_address()}:"
            " give one of its branches, tags or commits, or leave out the revision."
        ) from error
    except (errors.LocalEntryNotFoundError, errors.RevisionResolutionError) as error:
        raise HubUnreachableError(
            _describe_unreachable(repository, constants.HF_HUB_OFFLINE)
        ) from error
    except (ConnectionError, httpx2.TransportError) as error:
        raise HubUnreachableError(
            _describe_unreachable(repository, constants.HF_HUB_OFFLINE)
        ) from error
    except errors.HfHubHTTPError as error:
        raise UserError(
            f"{get_hub_address()} answers {error.response.status_code} to a request for"
            f" {repository}: wait a little, or check HF_TOKEN and HF_ENDPOINT, and run the same"
            " command again."
        ) from error
    except OSError as error:
        raise UserError(
            f"{repository} cannot be kept in {error.filename or get_hub_cache()}"
            f" ({error.strerror or type(error).__name__}): make room there, or set HF_HOME to a"
            " folder on another disk; what is fetched already is kept."
        ) from error


def _describe_missing(repository: HubModel | HubDataset) -> str:
    """Return the beginning of a sentence about a name without an owner; models may be folders as
    well."""
    return (
        f"{repository} is not a folder, and"
        if isinstance(repository, HubModel)
        else f"{repository}:"
    )


def _describe_unreachable(repository: HubModel | HubDataset, offline: bool) -> str:
    state = "is not a folder, and is not whole" if isinstance(repository, HubModel) else "is not"
    if offline:
        return (
            f"{repository} {state} in the cache, and HF_HUB_OFFLINE forbids to fetch it: unset it,"
            " or run the same command once on a machine with a network and the same cache."
        )
    return (
        f"{repository} {state} in the cache, and {get_hub_address()} cannot be reached: connect to"
        " the network or correct HF_ENDPOINT, and run the same command again, which goes on where"
        " it stopped."
    )


def _make_page_url(repository: HubModel | HubDataset) -> str:
    kind = "datasets/" if isinstance(repository, HubDataset) else ""
    return f"{get_hub_address()}/{kind}{repository.name}"


def get_hub_address() -> str:
    """Return the address of the hub, without a password in it."""
    from huggingface_hub import constants

    return mask_secrets(constants.ENDPOINT)
