"""What Plimsoll promises about crashes, races and faults, each promise tried on real processes: `make torture`.

Every fault must be seen to fire, or the run fails. See docs/reliability.md.
"""
