"""Tell what a model's name or folder stands for, without loading anything."""

from importlib import resources
from pathlib import Path

BUNDLED = "bundled"


def location(name: str) -> str:
    """Return where a model of the config lies: the bundled folder, a local folder, or a hub name."""
    if name == BUNDLED:
        return str(resources.files("confide") / "bundled" / "base")
    path = Path(name).expanduser()
    if path.is_file() and path.name == "config.json":
        return str(path.parent)
    return str(path) if path.exists() else name


def is_local(name: str) -> bool:
    """Return True if a model of the config is a local folder or file, and neither bundled nor a hub name."""
    return name != BUNDLED and Path(name).expanduser().exists()


def public_name(name: str) -> str:
    """Return a model's name for a release: a hub name as it is, of a path its last part alone."""
    looks_local = name.startswith(("/", "~", ".")) or name.count("/") > 1  # such a folder may be gone
    return Path(location(name)).resolve().name if is_local(name) or looks_local else name


def is_adapter(folder: Path) -> bool:
    """Return True if a released folder holds an adapter, and not a whole model."""
    return (folder / "adapter_config.json").is_file()
