"""The page that a hub shows of a published artifact which brings none of its own."""

from __future__ import annotations

from larql.format.artifact import Artifact
from larql.format.generation import generation_of

__all__ = ["CARD_NAME", "model_card"]

CARD_NAME = "README.md"

_TEXT = """\
---
library_name: larql
tags:
- {tag}
---

# {title}

A {generation} container (schema version {schema}): {count} files, each vouched for by the hash
that `index.json` states. It says by itself what the model is and how it runs.

```sh
larql verify hf://{repo}
larql run hf://{repo} "The capital of France is"
```

Its fingerprint, the SHA-256 of `index.json`, is

    {fingerprint}

Licence and origin are what `larql show hf://{repo}` prints. This page is no part of the container.
"""


def model_card(artifact: Artifact, repo: str) -> bytes:
    """Return a model card.

    No licence stands in its header: hubs refuse words that are not in their list of licences.

    Parameters
    ----------
    artifact : Artifact
    repo : str
        ``owner/name``.
    """
    generation = generation_of(artifact.schema).value
    title = "".join(c for c in artifact.model if c.isprintable()).strip()
    return _TEXT.format(
        tag=generation.lower(),
        title=title or repo.rpartition("/")[2],
        generation=generation,
        schema=artifact.schema.number,
        count=len(artifact.files),
        repo=repo,
        fingerprint=artifact.fingerprint,
    ).encode()
