"""Download models from the Hugging Face hub: `hf:OWNER/REPO:FILE.gguf`."""

import os
import re
from pathlib import Path
from typing import Any

from engine.errors import EngineError, PackageError

PREFIX = "hf:"
PATIENCE = 10  # timeout of the first request, in seconds
NAME = re.compile(r"hf:(?P<repo>[^/:@]+/[^/:@]+)(@(?P<revision>[^:]+))?:(?P<file>[^:]+)")


class HubError(EngineError):
    """A hub model that cannot be downloaded."""


def fetch(name: str) -> Path:
    """Returns the local path of `hf:OWNER/REPO:FILE`, or `hf:OWNER/REPO@REVISION:FILE`.

    Downloads it to the hub's cache folder if it is not there, with a progress bar; resumes
    interrupted downloads. Offline, the cached file is used.
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
        try:  # hf_hub_download would retry for half a minute, with a line for each try
            hub.get_hf_file_metadata(hub.hf_hub_url(**where), timeout=PATIENCE)
            reached = True
        except errors.HfHubHTTPError:  # hf_hub_download has better messages
            reached = True
        except Exception:
            reached = False
        path = hub.hf_hub_download(**where, local_files_only=not reached)
    except errors.GatedRepoError as error:
        why = "gated repository: accept the terms on its page, then run hf auth login"
        raise HubError(f"{name}: {why}") from error
    except errors.RepositoryNotFoundError as error:
        raise HubError(f"{name}: no such public repository on the hub") from error
    except errors.RevisionNotFoundError as error:
        raise HubError(f"{name}: the repository has no such revision") from error
    except errors.LocalEntryNotFoundError as error:
        why = "the hub cannot be reached, and the file is not in the cache"
        raise HubError(f"{name}: {why}") from error
    except errors.EntryNotFoundError as error:
        raise HubError(f"{name}: the repository has no such file") from error
    except Exception as error:  # HTTP, sockets, a full disk
        line = " ".join(str(error).split()) or type(error).__name__
        raise HubError(f"{name}: download failed: {line:.200}") from error
    return Path(path)
