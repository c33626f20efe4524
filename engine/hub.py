"""Models of the Hugging Face hub: `hf:OWNER/REPO:FILE.gguf`, fetched once."""

import os
import re
from pathlib import Path
from typing import Any

from engine.errors import EngineError, PackageError

PREFIX = "hf:"
PATIENCE = 10  # seconds for the hub's first answer
NAME = re.compile(r"hf:(?P<repo>[^/:@]+/[^/:@]+)(@(?P<revision>[^:]+))?:(?P<file>[^:]+)")


class HubError(EngineError):
    """A model of the hub that cannot be had."""


def fetched(name: str) -> Path:
    """The file of `hf:OWNER/REPO:FILE`, or of a branch, tag or commit with `@REVISION` behind REPO.

    It is fetched if the hub's cache folder has it not, with a bar, from where an interrupted
    download stopped; without the hub, the one in the cache is taken.
    """
    if not (found := NAME.fullmatch(name)):
        raise HubError(f"{name}: want hf:OWNER/REPO:FILE.gguf, or hf:OWNER/REPO@REVISION:FILE.gguf")
    try:
        import huggingface_hub as hub
        from huggingface_hub import errors
    except ImportError as error:
        raise PackageError(
            f"{name}: models of the hub need the package huggingface_hub: pip install 'assay[hub]'"
        ) from error
    where: dict[str, Any] = {
        "repo_id": found["repo"], "filename": found["file"], "revision": found["revision"],
        "endpoint": os.environ.get("HF_ENDPOINT"),
    }  # fmt: skip
    try:
        try:  # hf_hub_download would ask for half a minute, with a line for each time
            hub.get_hf_file_metadata(hub.hf_hub_url(**where), timeout=PATIENCE)
            reached = True
        except errors.HfHubHTTPError:  # which it tells better
            reached = True
        except Exception:
            reached = False
        path = hub.hf_hub_download(**where, local_files_only=not reached)
    except errors.GatedRepoError as error:
        why = "its owner asks for a login: accept the terms on its page, then hf auth login"
        raise HubError(f"{name}: {why}") from error
    except errors.RepositoryNotFoundError as error:
        raise HubError(f"{name}: the hub has no such repository, or none that is public") from error
    except errors.RevisionNotFoundError as error:
        raise HubError(f"{name}: the repository has no such revision") from error
    except errors.LocalEntryNotFoundError as error:
        why = "the hub cannot be reached, and the file was not fetched before"
        raise HubError(f"{name}: {why}") from error
    except errors.EntryNotFoundError as error:
        raise HubError(f"{name}: the repository has no such file") from error
    except Exception as error:  # of its parts: HTTP, sockets, a full disk
        line = " ".join(str(error).split()) or type(error).__name__
        raise HubError(f"{name}: cannot be fetched: {line:.200}") from error
    return Path(path)
