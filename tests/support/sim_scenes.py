"""All faults, scripts and scenes, each a method by its name. A schedule's profile says which."""

from __future__ import annotations

from sim_scenes_life import LifeScenes
from sim_scenes_membership import MembershipScenes
from sim_scenes_votes import VoteScenes


class Scenes(VoteScenes, LifeScenes, MembershipScenes):
    """Further kinds join as another base: a fault is a method without arguments, named in a
    profile's `weights`; a scene is a generator, named in its `scene`.
    """
