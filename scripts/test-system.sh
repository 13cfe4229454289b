#!/bin/bash
# The tests on a machine with systemd: see test-guest.sh.
exec "$(dirname "${BASH_SOURCE[0]}")/test-guest.sh" system "$@"
