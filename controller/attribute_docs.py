"""The docstrings under the fields of a class, read from its source.

Pydantic can do so itself (`use_attribute_docstrings`), but then does it at every start of every sidecar, and
keeps the sources: memory that only the reference pages need.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise


def attribute_docs(owner: type) -> dict[str, str]:
    """What is said under each field in the body of `owner` itself, by the field's name."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(definition, ast.ClassDef)  # noqa: S101  (the source of a class)
    return {
        field.target.id: inspect.cleandoc(doc.value.value)
        for field, doc in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(doc, ast.Expr)
        and isinstance(doc.value, ast.Constant)
        and isinstance(doc.value.value, str)
    }
