# Two hosts in one machine. rxe keeps to the first namespace, so both RoCE ports stay there, each a veth to the namespace
# `leaf`, which routes between them; the hosts are namespaces that see both devices and talk TCP over a veth of their own.
set -e
ip netns add leaf; ip netns add h0; ip netns add h1
put() { echo "$2" > "/proc/sys/net/ipv4/$1"; }
for of in all default; do put conf/$of/rp_filter 0; put conf/$of/accept_local 1; done
put conf/all/arp_ignore 1
for i in 0 1; do
  ip link add r$i mtu 4200 type veth peer name l$i netns leaf
  ip -n leaf link set l$i mtu 4200 up
  ip -n leaf addr add 10.1.$i.254/24 dev l$i
  ip addr add 10.1.$i.1/24 dev r$i
  ip link set r$i up
  put conf/r$i/rp_filter 0; put conf/r$i/accept_local 1
  ip route add 10.1.0.0/16 via 10.1.$i.254 dev r$i metric 10$i
  rdma link add rxe$i type rxe netdev r$i
done
ip netns exec leaf sh -c 'cd /proc/sys/net/ipv4; echo 1 > ip_forward; for i in all l0 l1; do echo 0 > conf/$i/rp_filter; done'
ip link add m0 type veth peer name m1
for i in 0 1; do
  ip link set m$i netns h$i
  ip -n h$i addr add 192.168.77.$((i + 1))/24 dev m$i
  ip -n h$i link set m$i up
  ip -n h$i link set lo up
done
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do  # a veth's state is up to a second late
  [ "$(rdma link | grep -c ACTIVE)" = 2 ] && break
  sleep 0.2
done
set +e
