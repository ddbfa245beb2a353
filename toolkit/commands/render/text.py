"""Writes manifests as text: YAML if PyYAML is installed (the extra `render`), else JSON, which is valid YAML."""

import json
import re
from collections.abc import Sequence
from typing import Any

# Text that other readers of YAML (Go's, in kubectl) take for a boolean or a number, and PyYAML does not.
OTHERWISE = re.compile(r"[yYnN]|[-+]?\.?[0-9].*")


def text(documents: Sequence[dict[str, Any]]) -> str:
    """Return *documents* as one stream with the order of keys kept; YAML has texts of several lines as blocks."""
    try:
        return _write_yaml(documents)
    except ImportError:
        return "---\n".join(json.dumps(document, indent=2, ensure_ascii=False) + "\n" for document in documents)


def _write_yaml(documents: Sequence[dict[str, Any]]) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types of its own
        """A class for this call only: add_representer changes the class."""

        def ignore_aliases(self, _: Any) -> bool:
            return True

    def lines(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else "'" if OTHERWISE.fullmatch(value) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, lines)
    stream: str = yaml.dump_all(documents, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1000)
    return stream
