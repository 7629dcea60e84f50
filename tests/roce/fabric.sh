# Two hosts with two RoCE ports each, in one machine. rxe keeps to the first namespace, so all ports
# stay there, each a veth to the namespace of its switch; the hosts are namespaces that see every
# device and talk TCP over a veth of their own.
#
#   rail 0: rxe0 (host 0) - leaf0 = spine0, spine1 (ECMP by UDP port) = leaf1 - rxe1 (host 1)
#   rail 1: rxe2 (host 0) - leaf2 - rxe3 (host 1)
#
# What follows the set-up are functions for the scripts.
set -e
put() { echo "$2" > "/proc/sys/net/ipv4/$1"; }
in_space() { ip netns exec "$@"; }
host_exec() {  # host, command: on a processor of its own, as hosts have
  local host=$1; shift
  taskset -c $host ip netns exec h$host "$@"
}
now() { cut -d' ' -f1 /proc/uptime; }  # of the clock that programs measure with

# A software device works in ksoftirqd, which has to take turns with processes that poll: 4 ms each.
# A real one works beside them.
for process in /proc/[0-9]*; do
  case $(cat $process/comm 2>/dev/null) in
    ksoftirqd/*) chrt -f -p 1 ${process#/proc/} > /dev/null ;;
  esac
done

for name in leaf0 leaf1 leaf2 spine0 spine1 h0 h1; do ip netns add $name; done
for of in all default; do put conf/$of/rp_filter 0; put conf/$of/accept_local 1; done
put conf/all/arp_ignore 1

port() {  # number, leaf, network: 10.N.I
  ip link add r$1 mtu 4200 type veth peer name d$1 netns $2
  ip -n $2 link set d$1 mtu 4200 up
  ip -n $2 addr add $3.254/24 dev d$1
  ip addr add $3.1/24 dev r$1
  ip link set r$1 up
  put conf/r$1/rp_filter 0; put conf/r$1/accept_local 1
  ip route add ${3%.*}.0.0/16 via $3.254 dev r$1 metric 10$1
  rdma link add rxe$1 type rxe netdev r$1
}
port 0 leaf0 10.1.0; port 1 leaf1 10.1.1; port 2 leaf2 10.3.0; port 3 leaf2 10.3.1

for leaf in 0 1; do
  for spine in 0 1; do
    ip -n leaf$leaf link add up$spine mtu 4200 type veth \
      peer name down$leaf mtu 4200 netns spine$spine
    ip -n leaf$leaf addr add 10.2.$leaf$spine.1/30 dev up$spine
    ip -n spine$spine addr add 10.2.$leaf$spine.2/30 dev down$leaf
    ip -n leaf$leaf link set up$spine up; ip -n spine$spine link set down$leaf up
  done
done
for name in leaf0 leaf1 leaf2 spine0 spine1; do
  in_space $name sh -c 'cd /proc/sys/net/ipv4; echo 1 > ip_forward
    echo 1 > fib_multipath_hash_policy
    for i in conf/*/rp_filter; do echo 0 > $i; done'
done

routes() {  # leaf, spines in use: each leaf spreads over them
  local hops="" spine
  for spine in $2; do hops="$hops nexthop via 10.2.$1$spine.2 dev up$spine"; done
  ip -n leaf$1 route replace 10.1.$((1 - $1)).0/24 $hops
}
for leaf in 0 1; do
  routes $leaf "0 1"
  for spine in 0 1; do ip -n spine$spine route add 10.1.$leaf.0/24 via 10.2.$leaf$spine.1; done
done

ip link add m0 type veth peer name m1
for i in 0 1; do
  ip link set m$i netns h$i
  ip -n h$i addr add 192.168.77.$((i + 1))/24 dev m$i
  ip -n h$i link set m$i up; ip -n h$i link set lo up
done
all_active() {  # a veth's state is up to a second late
  local i
  for i in $(seq 50); do
    [ "$(rdma link | grep -c ACTIVE)" = "$(rdma link | wc -l)" ] && break
    sleep 0.1
  done
}
all_active

uplinks() {  # what is done at each link between a leaf and a spine, then its arguments
  local what=$1 leaf spine; shift
  for leaf in 0 1; do for spine in 0 1; do $what leaf$leaf up$spine "$@"; done; done
}
replace_root() { local ns=$1 dev=$2; shift 2; in_space $ns tc qdisc replace dev $dev root "$@"; }
drop_root() { in_space $1 tc qdisc del dev $2 root 2> /dev/null || true; }
rate() { uplinks replace_root tbf rate $1 burst 32kb latency $2; }  # rate, latency
netem() {  # both ways, acknowledgements too, of both rails
  uplinks replace_root netem limit 10000 "$@"
  replace_root leaf2 d2 netem limit 10000 "$@"; replace_root leaf2 d3 netem limit 10000 "$@"
}
calm() {  # no shaping, all up, routes over all
  uplinks drop_root; drop_root leaf2 d2; drop_root leaf2 d3
  routes 0 "0 1"; routes 1 "0 1"
  for i in 0 1 2 3; do port_up $i; done
  all_active
}
spine_dark() {  # swallows everything, and no leaf notices
  replace_root leaf0 up$1 netem loss 100%; replace_root leaf1 up$1 netem loss 100%
}
spine_light() { drop_root leaf0 up$1; drop_root leaf1 up$1; }
reroute_around() { routes 0 "$((1 - $1))"; routes 1 "$((1 - $1))"; }
leaf_of() { if [ $1 -lt 2 ]; then echo leaf$1; else echo leaf2; fi; }
port_down() { ip -n $(leaf_of $1) link set d$1 down; }  # of rxe N, at its switch
port_up() { ip -n $(leaf_of $1) link set d$1 up; }
spine_bytes() {  # of both spines, from leaf 0 on
  for spine in 0 1; do in_space leaf0 cat /sys/class/net/up$spine/statistics/tx_bytes; done | xargs
}
set +e
