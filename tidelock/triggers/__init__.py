"""Triggers: who is told when a row enters or leaves a condition, and how the telling is done."""
