#!/bin/sh
# What mpirun calls in ssh's place, HOST COMMAND...: the command on this machine under that name.
host=$1
shift
exec unshare --uts sh -c 'hostname "$0" && exec sh -c "$*"' "$host" "$@"
