"""Three-way merge of two trees of entries, given what each side changed since their common base. Pure.

Entries match by id, then by name. By id: a rename on one side and a change on the other are both taken, and dropping
and creating again under the same name is another entry. By name: two entries cannot end up under one, and nothing can
end up in a namespace that the other side dropped. All conflicts are found, not only the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from icefield.merge.three_way import Clash, merge_mapping, merge_value
from icefield.model.conflicts import Conflict
from icefield.model.entries import Entry, EntryKind
from icefield.model.names import Identifier, Namespace

Key = Namespace | Identifier
Change = tuple[Entry | None, Entry | None]
"""What a key held in the base, and what it holds now. A rename is two changes: the old key's and the new key's."""


@dataclass(frozen=True, slots=True)
class TreeMerge:
    changes: dict[Key, Entry | None] = field(default_factory=dict)
    """What to change in ours (None: take away). Empty if there are conflicts."""
    conflicts: tuple[Conflict, ...] = ()


def merge_trees(
    ours: Mapping[Key, Change],
    theirs: Mapping[Key, Change],
    *,
    our_name: str = "ours",
    their_name: str = "theirs",
) -> TreeMerge:
    """``ours`` and ``theirs``: each side's changes since one and the same base."""
    our_side, their_side = _Side(ours, our_name), _Side(theirs, their_name)
    conflicts: list[Conflict] = []
    final: dict[str, _Spot | None] = {}
    for entry_id in dict.fromkeys((*our_side.base, *our_side.now, *their_side.base, *their_side.now)):
        base, our_spot, their_spot = _three(entry_id, our_side, their_side)
        final[entry_id] = _merge_entry(base, our_spot, their_spot, our_side, their_side, conflicts)
    _check_names(final, our_side, their_side, conflicts)
    if conflicts:
        return TreeMerge(conflicts=tuple(sorted(conflicts, key=lambda c: (c.entry, c.reason, c.message))))
    return TreeMerge(_changes(final, our_side, their_side))


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where an entry stands, and as what."""

    key: Key
    entry: Entry


class _Side:
    """One side's changes, turned from names to entries."""

    def __init__(self, changes: Mapping[Key, Change], name: str) -> None:
        self.changes = {key: change for key, change in changes.items() if change[0] != change[1]}
        self.name = name
        self.base = _by_id(self.changes, 0)
        self.now = _by_id(self.changes, 1)

    def touched(self, entry_id: str) -> bool:
        return entry_id in self.base or entry_id in self.now

    def did(self, entry_id: str) -> str:
        """What this side did to an entry, for a person."""
        base, now = self.base.get(entry_id), self.now.get(entry_id)
        if now is None:
            return "dropped" if base is not None else "left alone"
        if base is None:
            return "created"
        renamed = f"renamed to {name_of(now.key)}" if now.key != base.key else ""
        changed = "changed" if now.entry != base.entry else ""
        return " and ".join(part for part in (renamed, changed) if part)


def _by_id(changes: Mapping[Key, Change], side: int) -> dict[str, _Spot]:
    spots: dict[str, _Spot] = {}
    for key, change in changes.items():
        entry = change[side]
        if entry is None:
            continue
        if entry.id in spots:
            raise ValueError(f"entry {entry.id} stands under two names: {spots[entry.id].key} and {key}")
        spots[entry.id] = _Spot(key, entry)
    return spots


def _three(entry_id: str, ours: _Side, theirs: _Side) -> tuple[_Spot | None, _Spot | None, _Spot | None]:
    if not theirs.touched(entry_id):
        base = ours.base.get(entry_id)
        return base, ours.now.get(entry_id), base
    if not ours.touched(entry_id):
        base = theirs.base.get(entry_id)
        return base, base, theirs.now.get(entry_id)
    if ours.base.get(entry_id) != theirs.base.get(entry_id):
        raise ValueError(f"the two sides were not compared with the same base: entry {entry_id} differs")
    return ours.base.get(entry_id), ours.now.get(entry_id), theirs.now.get(entry_id)


def _merge_entry(
    base: _Spot | None,
    our_spot: _Spot | None,
    their_spot: _Spot | None,
    ours: _Side,
    theirs: _Side,
    conflicts: list[Conflict],
) -> _Spot | None:
    """The entry's place in the merged tree; what does not merge goes to ``conflicts``."""
    whole = merge_value(base, our_spot, their_spot)
    if not isinstance(whole, Clash):
        return whole
    known = our_spot or their_spot or base
    assert known is not None
    name = name_of((base or known).key)

    def conflict(reason: str, message: str, ours_is: str | None = None, theirs_is: str | None = None) -> None:
        entry_id = known.entry.id
        conflicts.append(
            Conflict(
                entry=name,
                reason=reason,
                message=f"{known.entry.kind} {name}: {message}",
                ours=ours_is or ours.did(entry_id),
                theirs=theirs_is or theirs.did(entry_id),
            )
        )

    if our_spot is None or their_spot is None:
        dropper, other = (ours, theirs) if our_spot is None else (theirs, ours)
        conflict("deleted-and-changed", f"dropped on {dropper.name}, {other.did(known.entry.id)} on {other.name}")
        return None
    # With no base the same entry came to both sides: where they differ, both "changed" it.
    key = merge_value(base.key if base else None, our_spot.key, their_spot.key)
    if isinstance(key, Clash) or key is None:
        conflict(
            "renamed-differently",
            f"renamed to {name_of(our_spot.key)} on {ours.name} and to {name_of(their_spot.key)} on {theirs.name}",
        )
        key = None
    entry = our_spot.entry
    if entry.kind == EntryKind.NAMESPACE:
        properties, clashes = merge_mapping(
            dict(base.entry.properties) if base else {}, dict(entry.properties), dict(their_spot.entry.properties)
        )
        for property_name, clash in clashes.items():
            conflict(
                "property-changed",
                f"property {property_name} is {_shown(clash.ours)} on {ours.name} and {_shown(clash.theirs)} "
                f"on {theirs.name}",
                _shown(clash.ours),
                _shown(clash.theirs),
            )
        entry = replace(entry, properties=tuple(sorted(properties.items())))
    else:
        content = merge_value(base.entry if base else None, our_spot.entry, their_spot.entry)
        if isinstance(content, Clash) or content is None:
            conflict(
                "both-changed",
                f"changed on {ours.name} and on {theirs.name}; merging two changes of one {entry.kind} is not "
                "supported yet",
            )
        else:
            entry = content
    # Which name it will have is open: nothing further follows from it.
    return _Spot(key, entry) if key is not None else None


def _check_names(final: Mapping[str, _Spot | None], ours: _Side, theirs: _Side, conflicts: list[Conflict]) -> None:
    """No name holds two entries, and no entry stands in a namespace that is gone."""
    holders: dict[Key, list[str]] = {}
    for entry_id, spot in final.items():
        if spot is not None:
            holders.setdefault(spot.key, []).append(entry_id)
    for key, ids in holders.items():
        if len(ids) < 2:
            continue
        our_id = next((entry_id for entry_id in ids if ours.touched(entry_id)), ids[0])
        their_id = next(entry_id for entry_id in ids if entry_id != our_id)
        created = all(entry_id not in side.base for side in (ours, theirs) for entry_id in ids)
        did_ours, did_theirs = ours.did(our_id), theirs.did(their_id)
        conflicts.append(
            Conflict(
                entry=name_of(key),
                reason="created-on-both" if created else "name-taken",
                message=f"{name_of(key)}: two entries want this name: one {did_ours} on {ours.name}, another "
                f"{did_theirs} on {theirs.name}",
                ours=did_ours,
                theirs=did_theirs,
            )
        )

    gone: dict[Key, list[_Side]] = {}
    for side in (ours, theirs):
        for key, (_, now) in side.changes.items():
            if isinstance(key, tuple) and now is None and key not in holders:
                gone.setdefault(key, []).append(side)
    for key, ids in holders.items():
        for namespace in _namespaces_of(key):
            droppers = gone.get(namespace, [])
            if not droppers or any(_stands_at(key, side, ids) for side in droppers):
                # Catalogs allow an entry whose namespace is not there: then one side alone made it so.
                continue
            dropper = droppers[0]
            other = theirs if dropper is ours else ours
            conflicts.append(
                Conflict(
                    entry=name_of(key),
                    reason="namespace-dropped",
                    message=f"{name_of(key)}: its namespace {name_of(namespace)} was dropped on {dropper.name}, and "
                    f"the entry was {other.did(ids[0])} on {other.name}",
                    ours="namespace dropped" if dropper is ours else ours.did(ids[0]),
                    theirs="namespace dropped" if dropper is theirs else theirs.did(ids[0]),
                )
            )
            break


def _stands_at(key: Key, side: _Side, ids: list[str]) -> bool:
    return any(spot.key == key for entry_id in ids if (spot := side.now.get(entry_id)) is not None)


def _changes(final: Mapping[str, _Spot | None], ours: _Side, theirs: _Side) -> dict[Key, Entry | None]:
    """From our tree to the merged one."""
    taken: dict[Key, Entry | None] = {}
    put: dict[Key, Entry | None] = {}
    for entry_id, spot in final.items():
        here = ours.now.get(entry_id) if ours.touched(entry_id) else theirs.base.get(entry_id)
        if here == spot:
            continue
        if here is not None and (spot is None or spot.key != here.key):
            taken[here.key] = None
        if spot is not None:
            put[spot.key] = spot.entry
    return taken | put


def _namespaces_of(key: Key) -> list[Namespace]:
    """The namespaces that a key stands in, the innermost first."""
    inner = key.namespace if isinstance(key, Identifier) else key[:-1]
    return [inner[:length] for length in range(len(inner), 0, -1)]


def name_of(key: Key) -> str:
    return str(key) if isinstance(key, Identifier) else ".".join(key)


def _shown(value: str | None) -> str:
    return "not set" if value is None else repr(value)
