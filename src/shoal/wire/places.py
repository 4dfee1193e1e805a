"""Where clusters lie that were started from here, and which access file is meant by a word on a command line.

A cluster's folder is `~/.shoal/clusters/NAME`, or in `SHOAL_HOME` if that is set. What else is in it is in
`shoal.cluster.home`, what an access file says in `access`.
"""

from __future__ import annotations

import os
import re

from shoal.errors import InputError

ACCESS_FILE = "access.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}")


def checked_name(name: str, what: str) -> str:
    """The name itself, if a cluster or a group can have it."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} cannot be the name of {what}", remedy="use letters, digits, dots, dashes and underscores"
        )
    return name


def cluster_folder(name: str) -> str:
    """Where everything of a cluster lies that was started from here."""
    base = os.environ.get("SHOAL_HOME") or os.path.join(os.path.expanduser("~"), ".shoal")
    return os.path.join(base, "clusters", name)


def access_path(name_or_path: str) -> str:
    """The access file of a cluster: by its name, or by the path of a file that somebody gave us."""
    if os.sep in name_or_path or name_or_path.endswith(".json"):
        return name_or_path
    path = os.path.join(cluster_folder(checked_name(name_or_path, "a cluster")), ACCESS_FILE)
    if not os.path.exists(path):
        raise InputError(
            f"there is no cluster {name_or_path!r} here",
            remedy=f"start it with 'shoal cluster start {name_or_path} --local 2', or give the path of an access file",
        )
    return path
