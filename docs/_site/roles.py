"""Griffe extension: Sphinx roles in docstrings (``:class:`Router```) become links to the page that has the object.

Names are looked up from where the docstring stands: members of the object and of its class, then of the module, then
what the module imports. A name that is not found ends the build; one that is found and is on no page stays code.
"""

import re

import griffe

ROLE = re.compile(r":(?:class|meth|func|attr|mod|data):`(~?)([^`]+)`")


class Roles(griffe.Extension):
    """Rewrites the roles in all docstrings of a package."""

    def on_package(self, *, pkg: griffe.Module, **_: object) -> None:
        """Called once the whole package is read."""
        rewrite(pkg)


def rewrite(obj: griffe.Object) -> None:
    """Rewrites the docstring of an object and of all that is defined in it."""
    if obj.docstring is not None:
        obj.docstring.value = ROLE.sub(lambda match: link(obj, *match.groups()), obj.docstring.value)
    for member in obj.members.values():
        if not member.is_alias:
            rewrite(member)


def inherited(obj: griffe.Object, name: str) -> str | None:
    """The path of a member that the object's class has from one of its bases."""
    while not obj.is_class:
        if obj.parent is None:
            return None
        obj = obj.parent
    return obj.inherited_members[name].target_path if name in obj.inherited_members else None


def link(obj: griffe.Object, short: str, name: str) -> str:
    """The cross-reference for a name seen from an object; with a tilde only its last part is shown."""
    first, *rest = name.split(".")
    try:
        if first == obj.package.name:
            target = obj.modules_collection[name].path
        else:
            target = ".".join([inherited(obj, first) or obj.resolve(first), *rest])
    except (griffe.NameResolutionError, KeyError) as error:
        raise SystemExit(f"{obj.path}: the docstring names {name!r}, which is not found from there.") from error
    shown = name.rsplit(".", 1)[-1] if short else name
    return f'<autoref identifier="{target}" optional><code>{shown}</code></autoref>'
