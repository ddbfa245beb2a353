"""Step times and traces of a rank, taken inside the rank (docs/rank-hook.md).

The rank hook arms it (hook/site, arrival.py): step_timer.py measures each step, ring.py writes it where the monitor
reads it. Modules here import each other relatively: in a rank whose interpreter has no toolkit, or whose script has a
package of that name, they are imported below another name. Nothing here imports a framework at its top.
"""
