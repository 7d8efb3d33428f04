"""What is known to help against collapse, one file each: so far LocAteR."""

from .locater import LocaterCallback, locater_penalty

__all__ = ["LocaterCallback", "locater_penalty"]
