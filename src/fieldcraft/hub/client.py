"""Client of the hub, and its exceptions as user-facing messages.

HF_ENDPOINT is the address of the hub, HF_TOKEN the credential, and HF_HUB_OFFLINE disables
requests, as usual. Messages never contain a header, a token or an address with a password.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fieldcraft.config.hub_names import HubDataset, HubModel, get_hub_cache
from fieldcraft.config.url_secrets import mask_secrets
from fieldcraft.types import UserError


class HubUnreachableError(UserError):
    """The hub does not respond, or offline mode is set."""


@contextmanager
def raise_hub_errors(repository: HubModel | HubDataset) -> Iterator[None]:
    """Convert exceptions inside the block while a model or a data set is requested. Raises
    UserError with cause and remedy if the hub rejects the request, HubUnreachableError if it is
    unreachable."""
    import httpx2
    from huggingface_hub import constants, errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise UserError(
            f"{repository} is gated: request access at {_make_page_url(repository)}, then set"
            " HF_TOKEN to a token of the account that has it."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise UserError(
            f"{_describe_missing(repository)} {get_hub_address()} has no accessible repository"
            " of that name: correct the name or, if it is private, set HF_TOKEN to a token of an"
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
            f"{repository} cannot be stored in {error.filename or get_hub_cache()}"
            f" ({error.strerror or type(error).__name__}): free disk space, or set HF_HOME to a"
            " folder on another disk; completed downloads are kept."
        ) from error


def _describe_missing(repository: HubModel | HubDataset) -> str:
    """Return the start of a message about a missing name; a model without an owner may also be a
    folder."""
    return (
        f"{repository} is not a folder, and"
        if isinstance(repository, HubModel)
        else f"{repository}:"
    )


def _describe_unreachable(repository: HubModel | HubDataset, offline: bool) -> str:
    state = "is not a folder, and is not complete" if isinstance(repository, HubModel) else "is not"
    if offline:
        return (
            f"{repository} {state} in the cache, and HF_HUB_OFFLINE prevents the download: unset"
            " it, or run the same command once on a machine with a network and the same cache."
        )
    return (
        f"{repository} {state} in the cache, and {get_hub_address()} cannot be reached: connect to"
        " the network or correct HF_ENDPOINT, and run the same command again, which resumes the"
        " download."
    )


def _make_page_url(repository: HubModel | HubDataset) -> str:
    kind = "datasets/" if isinstance(repository, HubDataset) else ""
    return f"{get_hub_address()}/{kind}{repository.name}"


def get_hub_address() -> str:
    """Return the address of the hub, without a password."""
    from huggingface_hub import constants

    return mask_secrets(constants.ENDPOINT)
