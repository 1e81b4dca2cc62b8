"""Network faults: NCCL transport (2.10 to 2.30), gloo, UCX, EFA, and the kernel's view of ports.

Whether RDMA and GPUDirect are in use at all is a scene (``watch.transport``), not a line.
"""

from __future__ import annotations

from ..signature import FINE, report
from ..signature import Signature as S


def _peer(number: int = 1) -> str:
    """A peer as NCCL prints it, ``host<port>`` or ``address<port>``, as the named group ``peerN``."""
    return rf"\[?(?P<peer{number}>[A-Za-z0-9][\w.:%-]*?)\]?(?:<\d+>|:\d+(?=[:,\s]|$))"


# Completion status as NCCL prints it: "error 12," up to 2.18, "status=12" to 2.26, "status=IBV_WC_..(12)" later.
_STATUS = r"(?:(?:with )?(?:error |status=)(?:[A-Z_]+\()?"

# gloo prints ``[address]:port``; the number of the named group follows.
_GLOO_PEER = r"\[?(?P<peer"

TABLE = (
    S(
        "net.retry_exceeded/nccl",
        "net.retry_exceeded",
        r"Got completion (?:from peer " + _peer() + r" )?" + _STATUS + r"(?:12|13)\b)",
        "host7:19989:20082 [1] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer "
        "192.0.2.15<53249> "
        "with error 12, opcode 0, len 0, vendor err 129 (Send)",
    ),
    S(
        "net.retry_exceeded/ucx",
        "net.retry_exceeded",
        r"(?i)transport retry count(?:er)? exceeded|RNR retry count(?:er)? exceeded",
        "[host7:12:0:12] ib_mlx5_log.c:177  Transport retry count exceeded on mlx5_0:1/RoCE (synd 0x15 vend 0x81)",
    ),
    S(
        "fact:ucx_peer",
        "fact:ucx_peer",
        r"\bQP 0x\w+ wqe\[.*\bdgid=(?:::ffff:)?(?P<peer>[\da-fA-F.:]+)",
        "[host7:12:0:12] ib_mlx5_log.c:177  RC QP 0x1b2 wqe[3]: SEND s-e [rqpn 0x2c1 dgid=::ffff:192.0.2.12]",
    ),
    S(
        "net.retry_exceeded/efa",
        "net.retry_exceeded",
        r"(?i)(?:NET/OFI|efa|RDM).*(?:unresponsive rem?o?te?|unresponsive receiver|unreachable remote)",
        "host7:9:9 [0] NET/OFI Request completed with error. RC: 21. Error: unresponsive receiver",
        blame="",
    ),
    S(
        "net.local_protection/nccl",
        "net.local_protection",
        r"Got completion (?:from peer \S+ )?" + _STATUS + r"(?:1|2|4|6|7|8|9|10|11)\b)",
        "host5:68738:69060 [3] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer "
        "192.0.2.11<39391> "
        "with error 4, opcode 32639, len 32639, vendor err 81 (Send)",
        blame="both",
    ),
    S(
        "net.local_protection/ucx",
        "net.local_protection",
        r"(?i)\blocal protection(?: error)?\b.*(?:mlx5|synd|vend)|remote access (?:error )?on mlx5",
        "[host7:12:0:12] ib_mlx5_log.c:177  Local protection on mlx5_0:1/RoCE (synd 0x4 vend 0x51 hw_synd 0/0)",
        blame="both",
    ),
    S(
        "net.flush_cascade/nccl",
        "net.flush_cascade",
        r"Got completion (?:from peer \S+ )?" + _STATUS + r"5\b)",
        "host12:3468:3905 [4] transport/net_ib.cc:2358 NCCL WARN NET/IB: Got completion from peer 192.0.2.19<54862> "
        "with status=5 opcode=32616 len=0 vendor err 249 (Recv)",
        role="cascade",
        depth=60,
    ),
    S(
        "net.qp_connect_failed/modify",
        "net.qp_connect_failed",
        r"ibv_modify_qp failed with (?:error )?(?:\d+ )?(?:Connection timed out|Network is unreachable|"
        r"No route to host|"
        r"Connection refused|Invalid argument|Remote I/O error|Transport endpoint|Resource temporarily|Unknown "
        r"error)|"
        r"[Ff]ailed to modify QP.* to (?:RTR|RTS)",
        "host3:4940:4960 [0] misc/ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp failed with error Connection "
        "timed out",
        blame="both",
        unless=r"NCCL INFO|retrying|local GID (?:fe80::|::,)",
    ),
    S(
        "net.qp_connect_failed/create",
        "net.qp_connect_failed",
        r"ibv_create_qp failed(?! with (?:error )?(?:\d+ )?Cannot allocate)",
        "host3:4940:4960 [0] misc/ibvwrap.cc:180 NCCL WARN Call to ibv_create_qp failed with error Invalid argument",
        blame="both",
        unless=r"NCCL INFO",
    ),
    S(
        "fact:proxy_connect",
        "fact:proxy_connect",
        r"Failed to execute operation Connect from rank (?P<rank>\d+)",
        "host3:4940:4960 [0] proxy.cc:1519 NCCL WARN [Proxy Service 8] Failed to execute operation Connect from rank "
        "8, retcode 2",
        blame="host",
    ),
    S(
        "net.gid_config/modify",
        "net.gid_config",
        r"ibv_modify_qp failed with (?:error )?(?:\d+ )?(?:No such device|No such file|No data available|"
        r"Cannot assign requested|"
        r"Address not available)|ibv_modify_qp failed .*local GID (?:fe80::|::,)",
        "host8:1330:1391 [0] misc/ibvwrap.cc:284 NCCL WARN Call to ibv_modify_qp failed with error No such device",
        blame="both",
        unless=r"NCCL INFO|retrying",
        depth=29,
    ),
    S(
        "net.gid_config/query",
        "net.gid_config",
        r"failed in ncclIbRoceGetVersionNum|ibv_query_gid(?:_ex|_table)? failed|"
        r"(?i:(?:no|cannot find|could not find|failed to find) (?:a )?(?:usable |valid |suitable |matching "
        r")?(?:RoCE ?v?2? |IPv4 )*GID\b)|"
        r"(?i:\bGID (?:index )?\d* ?(?:is |was )?(?:not found|not valid|invalid|is empty|out of range|does not "
        r"exist))|"
        r"(?i:invalid (?:s?gid[_ ]?index|GID)\b)|(?i:failed to (?:get|read|query) (?:s?gid|gid index))",
        "host2:4420:4477 [0] transport/net_ib.cc:268 NCCL WARN NET/IB: read failed in ncclIbRoceGetVersionNum: "
        "Invalid "
        "argument",
        blame="both",
        unless=r"NCCL INFO (?!.*failed)|GID table change",
        depth=29,
    ),
    S(
        "net.mr_reg_failed/nccl",
        "net.mr_reg_failed",
        r"ibv_reg_(?:mr|dmabuf_mr)\w*(?:\(.*\))? failed|"
        r"ibv_(?:create_cq|alloc_pd|create_qp|create_comp_channel|create_srq)\w*(?:\(.*\))? failed(?: "
        r"with)?(?: error)?:? ?(?:\d+ )?Cannot allocate memory",
        "host1:551:590 [0] misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot "
        "allocate memory",
        blame="both",
        unless=r"NCCL INFO",
        depth=27,
    ),
    S(
        "net.mr_reg_failed/other",
        "net.mr_reg_failed",
        r"(?i)(?:unable|failed|could ?n[o']t) (?:to )?register (?:a )?(?:memory|mr)\b|(?:unable|failed)"
        r" to create (?:a )?memory region|"
        r"max(?:imum)? locked memory.*(?:unlimited|ulimit)|couldn't allocate MR",
        "host1:9:9 [0] NET/OFI Unable to register memory (type = 2) for device 0. RC: -12, Error: Cannot "
        "allocate memory",
        blame="both",
        depth=27,
    ),
    S(
        "net.mr_reg_failed/rlimit",
        "net.mr_reg_failed",
        r"RLIMIT_MEMLOCK is \d+ bytes",
        "libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes.",
        blame="both",
        depth=62,
        severity="warn",
    ),
    S(
        "net.ib_init_failed/open",
        "net.ib_init_failed",
        r"ibv_open_device failed|NET/IB\S* ?: Unable to (?:open|query) (?:device|port)|Failed to open libibverbs|"
        r"ibv_(?:get_device_list|query_device\w*|query_port) failed|Failed to query device",
        "host3:1201:1260 [0] transport/net_ib.cc:148 NCCL WARN NET/IB : Unable to open device mlx5_bond_0",
        blame="both",
        depth=57,
        unless=r"NCCL INFO Failed to open libibverbs",
    ),
    S(
        "net.ib_init_failed/forced",
        "net.ib_init_failed",
        r"Failed to initialize any NET plugin|Error: network .{1,64} not found",
        "host1:610:680 [0] net.cc:306 NCCL WARN Error: network IB not found.",
        blame="both",
        depth=26,
        severity="fatal",
    ),
    S(
        "net.bootstrap_unreachable/connect",
        "net.bootstrap_unreachable",
        # Names of the functions change with the version (socketPollConnect, ncclOsSocketPollConnect from 2.29 on).
        r"[Ss]ocket\w*Connect\w*: ?[Cc]onnect(?: to " + _peer(1) + r")? (?:failed|returned)|"
        r"Call to connect (?:to )?" + _peer(2) + r" (?:returned|failed)|"
        r"^(?:\S+ )?NCCL WARN (?:Call to )?[Cc]onnect(?: to " + _peer(3) + r")? (?:returned|failed)|"
        r"\b[Cc]onnect to " + _peer(4) + r" returned .{1,60}exceeded error retry count|"
        r"[Ss]ocket\w*Accept\w*: (?:exceeded error retry count|Accept failed)|"
        r"[Ss]ocketPollConnect (?:poll\(\) )?failed",
        "host5:240:240 [6] misc/socket.cc:533 NCCL WARN socketPollConnect: Connect to 192.0.2.14<56849> returned "
        "113(No route to host) errno 115(Operation now in progress)",
        unless=r"NCCL INFO|retrying",
    ),
    S(
        "net.bootstrap_unreachable/interface",
        "net.bootstrap_unreachable",
        r"(?i)no (?:socket )?interface found|unable to find (?:address|interface) for: \S+|failed to find "
        r"(?:an? )?interface\b|"
        r"unable to resolve address for",
        "host1:39:40 [0] NCCL WARN Bootstrap : no socket interface found",
        blame="host",
    ),
    S(
        "net.bootstrap_unreachable/gloo",
        "net.bootstrap_unreachable",
        r"[Cc]onnectFullMesh failed|gloo/transport/tcp/\w+\.cc:\d+\] (?:.*SO_ERROR: |connect(?:ion)? (?:timeout|"
        r"failed)|[Cc]onnect timeout)",
        "[rank1]: RuntimeError: Gloo connectFullMesh failed with [third_party/gloo/gloo/transport/tcp/pair.cc:144] "
        "no error",
        depth=34,
    ),
    S(
        "fact:gloo_remote",
        "fact:gloo_remote",
        r"(?:SO_ERROR|connect).{0,160}?remote=\[" + r"(?P<peer>[\w.:%-]+?)" + r"\]",
        "SO_ERROR: Connection refused, remote=[192.0.2.7]:51234",
    ),
    S(
        "net.peer_closed/nccl",
        "net.peer_closed",
        r"Connection closed by remote peer "
        + _peer(1)
        + r"|Call to (?:recv from|send to|recv|send) "
        + _peer(2)
        + r" failed|[Ss]ocketProgress\w*: (?:recv from|send to) "
        + _peer(3)
        + r" failed",
        "host1:39964:40044 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote "
        "peer host2<57557>",
        role="cascade",
        depth=50,
        unless=r"NCCL INFO",
    ),
    S(
        "net.peer_closed/gloo",
        "net.peer_closed",
        r"Connection closed by peer "
        + _GLOO_PEER
        + r"1>[A-Za-z0-9][\w.%-]*|[0-9a-fA-F:.]+(?:%\w+)?)\]?:\d+(?:[:.,\s]|$)|"
        r"(?:[Rr]ead|[Ww]rite)v?(?: error)? "
        + _GLOO_PEER
        + r"2>[A-Za-z0-9][\w.%-]*|[0-9a-fA-F:.]+(?:%\w+)?)\]?:\d+[:.,\s].{0,20}(?:Connection reset|Broken pipe|"
        r"Connection timed out|No route to host|Connection refused|Network is unreachable)",
        "[rank1]: RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [192.0.2.22]:50366: Connection "
        "reset by peer.",
        role="cascade",
        depth=50,
    ),
    S(
        "net.peer_closed/store",
        "net.peer_closed",
        r"(?:recvValue\w*|sendBytes|recvBytes) failed on |store->get\('\d+'\) got error: (?!.*wait timeout)",
        "[rank3]:[W socket.cpp] [c10d] recvValue failed on SocketImpl(fd=64, addr=[host1]:53312, remote=[host0]:295"
        "00): "
        "Connection reset by peer",
        role="cascade",
        depth=78,
        unless=r"should dump|heartbeat monitor|shut down too early",
    ),
    S(
        "net.peer_closed/remote_error",
        "net.peer_closed",
        r"remote process exited or there was a network error|ncclRemoteError",
        "NCCL error: remote process exited or there was a network error, NCCL version 2.21.5",
        role="cascade",
        # Said of whatever ended a peer, so any line that says more comes before it.
        depth=61,
    ),
    S(
        "net.peermem_invalid_context/kernel",
        "net.peermem_invalid_context",
        r"(?:nvidia[-_]peermem|nv_peer_mem|nv_get_p2p|nv_mem_).*(?i:detected invalid context)",
        "host3 kernel: nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping "
        "further processing",
        blame="host",
        depth=85,
    ),
    S(
        "net.nic_power/mlx5",
        "net.nic_power",
        r"(?i)detected insufficient power on the PCIe slot|insufficient power (?:was )?(?:detected|supplied|budget)|"
        r"(?:module|port).*(?:high power|power budget) (?:exceeded|is not supported)|power budget exceeded",
        "host8 kernel: mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 2): Detected insufficient power "
        "on the PCIe slot (27W).",
        blame="host",
        depth=82,
    ),
    S(
        "net.link_degraded/speed",
        "net.link_degraded",
        r"(?i)\b(?:port|link|NET/IB).*speed change|\( ?Could be [\d.x]+|(?:link|port|cable)\b.{0,40}\bdegraded|"
        r"degraded (?:link|speed|width)\b|"
        r"(?:link|port)\b.{0,60}reduced (?:speed|width|rate)|(?:symbol[ _-]?err\w*|(?:effective|raw|symbol) BER)"
        r".{0,40}(?:exceed|above|over|too high|threshold)|"
        r"link width.{0,30}(?:x\d+).{0,30}(?:expected|instead|of x\d+)",
        "host2:20:21 [0] transport/net_ib.cc:190 NCCL WARN NET/IB : mlx5_3:1 speed change detected",
        blame="host",
        unless=r"(?i:not degraded|below|NVLink|RAID|\bmd\d|array)|\bGPU\b",
        depth=80,
    ),
    S(
        "fact:rates",
        "fact:rates",
        r"(?i)(?:\bport\b|\blink\b|\bHCA\b|\bNIC\b|mlx\d_\d+|\bethtool\b|\ben[psox]\d\w+|\beth\d+|"
        r"\bib[ps]?\d+).{0,80}?\b"
        r"(?P<is>\d+(?:\.\d+)?) ?(?P<unit>[GM](?:b\w*(?:/s\w*)?|T/s)?|x)\b(?: ?\([^()]{0,24}\))?[^\d]{0,24}"
        r"\b(?:was|expect\w*|should be|instead of|rather than|want\w*|nominal|down from|formerly|configured|"
        r"capable of)\b"
        r"[^\d]{0,12}(?P<was>\d+(?:\.\d+)?) ?(?P<unit2>[GM](?:b\w*(?:/s\w*)?|T/s)?|x)\b",
        "host7 kernel: mlx5_core 0000:5e:00.0 enp94s0np0: Link up at 200Gbps (was 400Gbps)",
        blame="host",
        unless=r"(?i)loss|throughput|learning|tokens|samples|temperature|NVLink",
    ),
    S(
        "net.link_degraded/pcie",
        "net.link_degraded",
        r"(?:mlx\d_core|bnxt_en|\bice|irdma|hfi1) [0-9a-f:.]+: .*available PCIe bandwidth, limited by",
        "host2 kernel: mlx5_core 0000:41:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 8.0 GT/s "
        "PCIe x8 link at "
        "0000:40:01.0 (capable of 252.048 Gb/s with 16.0 GT/s PCIe x16 link)",
        blame="host",
        depth=81,
    ),
    S(
        "net.link_degraded/words",
        "net.link_degraded",
        r"(?i)(?:\bport\b|\blink\b|mlx\d_\d+|\brate\b).{0,60}\b(?:dropped|reduced|fell|downgraded|degraded|"
        r"negotiated down|came up)"
        r"\b (?:from .{1,24} )?(?:to|at) (?:only )?\d+ ?(?:G|Gb|Gbps|Gb/s|Mb/s|x\b)(?:.{0,40}\b(?:instead "
        r"of|expected|of)\b)?",
        "host2 kernel: mlx5_core 0000:41:00.0 mlx5_0: Port 1 link rate dropped from 400 Gb/s to 100 Gb/s",
        blame="host",
        unless=r"(?i)loss|throughput|learning|tokens|samples|temperature",
        depth=80,
    ),
    S(
        "net.link_down/report",
        "net.link_down",
        report(
            r"(?:\bport\b|\b(?<!NV)link\b|\bHCA\b|\bNIC\b|\bmlx\d_\d+\S*).{0,40}"
            r"\b(?:is |went |state:? |to )(?:down|disabled|polling)\b"
        ),
        "2026-01-01 10:00:00 ALERT host3: port mlx5_3/1 state changed from ACTIVE to DOWN",
        blame="host",
        depth=13,
        whole=True,
        unless=FINE + r"|NV-?Link|docker|veth|br-|Xid",
    ),
)
