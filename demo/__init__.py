"""What `make demo` shows: a table that is read and written while its replicas move, and what became of every row.

command      what is asked for, and how it ends
story        the steps, in order
cluster      six stores on this machine, by the same verbs as everywhere
spark        a million rows in, and all rows out again to be counted
load         reads and writes throughout, and what was acknowledged
watch        where leaders and replicas are, and what was copied, twice a second
interrupts   Ctrl-C, at any moment
screen       live in a terminal, plain lines in a pipe
facts        what was seen, for the report
statistics   percentiles, windows, counters
checks       what must hold in the end
charts       lines over time, as SVG
report       one page that needs nothing else
"""
