# Helios control plane, version 1.
#
# Every daemon serves one bootstrap capability: helios-controller a Controller, helios-agent an Agent,
# helios-l3d an L3. Errors are Cap'n Proto exceptions whose description begins with "ENAME: " (the status
# names of the C ABI) followed by one sentence. Names end with their unit. Ids are 32 lower-case hex digits.
# Bytes of shards never travel here: they are read from the pool (mapped, or by the data protocol).
@0xd4a1c9f0e85b3a27;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("helios::api");

# Maximum number of values (members and elements, at any depth) in the parameters of a method; default 65536.
annotation maxValues @0xd1f6a0c49bb3e27a (method) :UInt32;

# The first enumerant of an enum is the value of an absent field: the one that promises least, or `unsaid` (unset).
# The word is what people and JSON see of an enumerant; by default its name. "" = unset. Of a field: its name in JSON.
# Words must not change, because the Controller's store contains them. Numbers may change until the first release.
annotation word @0x84c470eb2e269639 (enumerant, field) :Text;
# An empty, absent or unset field is refused, and the refusal names it.
annotation required @0xd94bbbe64f5ea733 (field, param) :Void;

# JSON only. An unset field is left out: a text that is NULL in C, an empty list, a number with its default, a struct whose
# fields are all unset.
annotation optional @0xc979a99a733a166f (field) :Void;
# A list becomes an object. The first field of an element, a text, is the member's name; its value is the other field, or an
# object of the others.
annotation map @0xf5b3a3e7dbcb8431 (field) :Void;
# A map whose members are put into the struct's own object, beside its fields.
annotation rest @0xf89fbafaf16b7d7a (field) :Void;
# A struct whose members are put into the enclosing object. Such documents are only written, never read.
annotation flatten @0xb0a8b6e1d4c2975e (field) :Void;
# A number whose default is written as null.
annotation nullable @0x9c1e5d0af37b6428 (field) :Void;
# How people see a field: "hex": a UInt32 as 8 hexadecimal digits; "json": a text as the JSON that it contains, left out when it
# is empty; "text": a Data as text, with '?' for every byte beyond ASCII unless it is UTF-8. Files and the Controller's store contain
# the plain value.
annotation shown @0xe7f25b8c6a913d04 (field) :Text;

struct KeyValue { key @0 :Text; value @1 :Text; }

# One option of a daemon and its current value; origin: "default", "file PATH:LINE", "environment NAME", "flag --NAME".
# Passwords in URLs are masked.
struct OptionValue { name @0 :Text; value @1 :Text; origin @2 :Text; }

# ---- nodes ---------------------------------------------------------------------------------------

struct Device { kind @0 :Text; id @1 :Text; name @2 :Text; memoryBytes @3 :UInt64; numaId @4 :Int32; nicClass @5 :Text; }
# kind: "gpu" or "nic"; id: PCI address; nicClass: as in core/planner/topo.h, "" = unknown or a GPU. A slot is a NUMA node with CPUs.
struct Slot { numaId @0 :Int32; cpus @1 :Text; memoryBytes @2 :UInt64; gpus @3 :List(Device); nics @4 :List(Device); }

struct NodeInfo {
  name @0 :Text $required; # serverId
  agentAddress @1 :Text $required;   # of this Agent's RPC
  hostId @2 :Text;         # same value = same machine (shared memory is reachable)
  incarnation @3 :Text $required;    # new for every start of the Agent
  executor @4 :Text $required;       # "process", "docker", ...
  version @5 :Text;
  slots @6 :List(Slot);
  rankAddress @7 :Text;    # host name or IP that ranks of other nodes can reach (MASTER_ADDR)
  dataAddress @8 :Text;    # host:port where the node's L2 is read and written; "" = none
  migrateAddress @9 :Text; # host:port where the node's L2 accepts migrations (ZeroMQ); "" = none
  storeSocket @10 :Text;   # Unix socket where ranks of this node get the L2 pool; "" = no L2
  tiers @11 :List(TierInfo);
  storeEpoch @12 :UInt64;  # grows with every change of the store's contents
  hostAddress @13 :Text;   # rankAddress as an IP address; "" = it has none
  stateDirectory @14 :Text; # identity of the Agent's state directory on its host, locked by one Agent at a time; "" = unknown
  leaf @15 :Text;          # the switch that the node is connected to, and the one above it; "" = unknown
  spine @16 :Text;
  health @17 :Health;      # of the last test
  deviceAddresses @18 :Text; # IP addresses of the devices' own network ports, in the order of the devices, separated by commas; "" = unknown
}

# untested: unset. testing: the first test of an Agent is running.
enum HealthState { untested @0; passed @1; failed @2; skipped @3; testing @4; }
struct HealthRow {
  name @0 :Text;           # memory, checksum, network, clock, disk, script
  state @1 :HealthState;
  value @2 :Text;          # what was found, for people
  text @3 :Text;           # why it failed or was skipped
}
struct Health {
  timeMs @0 :Int64;        # when the test ended; 0 = never tested
  state @1 :HealthState;
  tookMs @2 :Int32;
  rows @3 :List(HealthRow);
  reason @4 :Text;         # the first failed row of a failed test
}

# L1: device memory; L2: host memory of a node; L3: the pool; L4: the archive, reachable only through the pool's host.
enum Tier { unsaid @0 $word(""); l1 @1 $word("L1"); l2 @2 $word("L2"); l3 @3 $word("L3"); l4 @4 $word("L4"); }

enum Pressure { low @0; normal @1; high @2; }

# One tier of one node (or of the L3 host): usage in bytes, exact when the call is answered.
struct TierInfo {
  tier @0 :Tier $required;
  name @1 :Text;           # "emu:0", "cuda:1", "host", "pool", "dir:/archive"
  quotaBytes @2 :UInt64;   # 0 = limited only by the medium
  usedBytes @3 :UInt64;    # sealed and being written
  writingBytes @4 :UInt64; # the part of usedBytes that is being written
  quarantinedBytes @5 :UInt64;
  shards @6 :UInt64;
  highBytes @7 :UInt64;    # watermarks
  lowBytes @8 :UInt64;
  pressure @9 :Pressure;
  numaId @10 :Int32;       # -1 = several or none
  regions @11 :List(RegionInfo);
  backing @12 :Text;       # "huge pages", "4 KiB pages", "device memory", ...: what was actually allocated
  nicClass @13 :Text;      # L1: of the nearest NIC; as in core/planner/topo.h
  nicDirect @14 :Bool;     # L1: a NIC can access its memory directly
  kind @15 :Text;          # "" = shards; "chunks" = HybridPS chunks of ranks, not counted in any quota of shards
  processes @16 :List(ProcessBytes);  # chunks: the use of each process
  keptBytes @17 :UInt64;   # L2: copies cached by reads, evicted when space is needed; not in usedBytes
  keptShards @18 :UInt64;  # not counted in `shards`
  askedBytes @19 :UInt64;  # chunks: what the processes are asked to keep at most; 0 = nothing is asked
}
# Asks the processes with chunks in the tier of that name (TierInfo.name) to use at most so many bytes together.
struct ChunkRequest { name @0 :Text; bytes @1 :UInt64; }
struct ProcessBytes { pid @0 :Int32; usedBytes @1 :UInt64; }
struct RegionInfo { numaId @0 :Int32; bytes @1 :UInt64; usedBytes @2 :UInt64; bound @3 :Bool; }

struct Telemetry {
  timeMs @0 :Int64;
  load1 @1 :Float64;
  cpuBusyPercent @2 :Float64;
  memoryTotalBytes @3 :UInt64;
  memoryAvailableBytes @4 :UInt64;
  rxBytes @5 :UInt64;      # all interfaces but loopback, since boot
  txBytes @6 :UInt64;
  slots @7 :List(SlotLoad);
  gpus @8 :List(GpuLoad);
  nics @9 :List(NicLoad);
  containers @10 :List(ContainerLoad);  # of those that run
  troubles @11 :List(Text);  # reasons not to start anything here: a device that vanished, a full log disk
  leftOut @12 :UInt32;     # number of rows that did not fit into the heartbeat
  backbone @13 :LineLoad;
}
# Load of the interface of a network, by all traffic. bitsPerSecond: its capacity, 0 = unknown. busyPercent -1 = unknown.
struct LineLoad { interface @0 :Text; bitsPerSecond @1 :UInt64; busyPercent @2 :Float64; }

# Percentages and rates are averages since the previous reading. Values that the machine does not report are 0.
struct SlotLoad { numaId @0 :Int32; cpuBusyPercent @1 :Float64; memoryTotalBytes @2 :UInt64; memoryFreeBytes @3 :UInt64; }
struct GpuLoad {
  id @0 :Text;             # PCI address
  uuid @1 :Text; name @2 :Text;
  busyPercent @3 :Float64; memoryTotalBytes @4 :UInt64; memoryUsedBytes @5 :UInt64;
  temperatureCelsius @6 :Int32; powerWatts @7 :Float64;
  eccErrors @8 :UInt64;    # uncorrected, since the driver was loaded
}
# kind: ethernet, infiniband, virtual. Bytes and errors since boot.
struct NicLoad {
  name @0 :Text; kind @1 :Text; up @2 :Bool;
  rxBytes @3 :UInt64; txBytes @4 :UInt64; errors @5 :UInt64;
  rxBytesPerSecond @6 :Float64; txBytesPerSecond @7 :Float64;
}
struct ContainerLoad {
  id @0 :Text;
  cpuPercent @1 :Float64;  # 100 is one processor
  memoryBytes @2 :UInt64;
  limitBytes @3 :UInt64;   # 0 = none
  oomKills @4 :UInt64;
  processes @5 :UInt32;
  source @6 :Text;         # cgroup v2, cgroup v1, processes: the private memory of the ranks' process trees
}

# ---- containers ----------------------------------------------------------------------------------

struct RankSpec {
  rank @0 :Int32; pp @1 :Int32; tp @2 :Int32; dp @3 :Int32; localRank @4 :Int32;
  env @5 :List(KeyValue);  # variables that differ between ranks
  cp @6 :Int32;
}

struct ContainerSpec {
  id @0 :Text;             # JOB.ATTEMPT.INDEX, never used again
  job @1 :Text;
  attempt @2 :Int32;
  index @3 :Int32;
  numaId @4 :Int32;
  cpus @5 :Text;           # "0-3,8": the slot's processors
  memoryBytes @6 :UInt64;  # 0 = no limit
  image @7 :Text;
  command @8 :List(Text);
  workdir @9 :Text;
  env @10 :List(KeyValue); # same for all ranks
  ranks @11 :List(RankSpec);
  gpus @12 :List(Text);
  stopGraceMs @13 :Int32;
  mounts @14 :List(Text);  # HOST:CONTAINER[:ro], container engines only
  rankTable @15 :Text;     # initial content of the file RANK_TABLE_FILE; "" = no such file
  # The Python of the ranks, one of: directory of a virtual environment; directory or name of a conda
  # environment; path of the interpreter. "" = none.
  venv @16 :Text;
  conda @17 :Text;
  python @18 :Text;
  nics @19 :List(Text);    # RDMA devices of the slot ("mlx5_0"), filled in by the Agent
  replace @20 :ReplaceRule $optional; # for ranks that are lost while the others continue
  epoch @21 :UInt64;       # of the ordering Controller; 0: none
}

# wanted: its start was requested, but nothing has been reported of it yet. lost: with its node.
enum ContainerState { wanted @0; starting @1; running @2; succeeded @3; failed @4; stopped @5; lost @6; }

# A lost process is replaced by another one in its container, at most `max` times; stableMs without a loss reset the count.
# max 0: never; the container then ends with the process. spares: processes parked in the container for this purpose.
# backoffMs: delay after a process that made no step, doubled each time up to backoffMaxMs; 0 = 1 s and 60 s.
# onFailure: "memory=fail 42=ignore", the reaction to a kind of failure or an exit code (core/replace/exits.h).
struct ReplaceRule {
  max @0 :Int32; stableMs @1 :Int64; spares @2 :Int32; backoffMs @3 :Int64; backoffMaxMs @4 :Int64; onFailure @5 :Text;
}

enum RankActivity { unsaid @0 $word(""); joining @1; loading @2; training @3; saving @4; }

# What a rank reports with helios.report, and what its node observes. Durations end at the report.
struct RankProgress {
  activity @0 :RankActivity;
  step @1 :Int64 = -1;        # the last completed step; -1 = none yet
  steps @2 :UInt64;           # completed since the gang last met
  sinceMs @3 :Int64 = -1;     # since the last step, or since training began; -1 = neither
  medianMs @4 :Float64;       # of its last 63 steps; 0 = none measured
  loss @5 :Float64;
  tokens @6 :UInt64;          # total of this process
  generation @7 :UInt32;      # how often its gang has met; 0 = not reported
  stopped @8 :Bool;           # its process is stopped: by a signal or a debugger
  recovery @9 :RecoveryTimes $optional; # of its last replacement, once it has made a step
  ownMs @10 :Float64;         # median of the time not spent waiting for others, over its last 15 steps; 0 = none measured
  trouble @11 :Text;          # the last problem that it reported; "" = none
  troubles @12 :UInt32;       # number of reported problems, including those of earlier processes in its place
  doneBefore @13 :Int64;      # steps below this number were complete before the gang last met; 0 = none
  noLoss @14 :Bool;           # no loss was reported, or one that is not finite; loss is 0 then
}
# From a rank's end to the first step of its replacement. totalSeconds 0 = no replacement.
struct RecoveryTimes {
  startSeconds @0 :Float64;   # until the replacement had the rank's place
  joinSeconds @1 :Float64;    # until the gang had met
  loadSeconds @2 :Float64;    # until training began
  stepSeconds @3 :Float64;    # its first step
  totalSeconds @4 :Float64;
}

struct RankStatus {
  rank @0 :Int32; pid @1 :Int32; state @2 :ContainerState; exitCode @3 :Int32; signal @4 :Int32;
  finishedMs @5 :Int64;
  progress @6 :RankProgress $optional;
  replaced @7 :UInt32;     # number of replacements in this container
  lostMs @8 :Int64;        # when its predecessor ended; 0 = never
  lostCode @9 :Int32; lostSignal @10 :Int32;   # and how
}

struct ContainerStatus {
  id @0 :Text;
  state @1 :ContainerState;
  exitCode @2 :Int32;      # of the first rank that failed
  signal @3 :Int32;
  message @4 :Text;        # why it failed, for people
  binding @5 :Text;        # cpuset-cgroup, affinity, none
  startedMs @6 :Int64;
  finishedMs @7 :Int64;
  ranks @8 :List(RankStatus);
  warning @9 :Text;        # a problem that did not end it: output that could not be kept
  stepsFile @10 :Text;     # on the node: the ranks' step pages (os/step_page.h); "" = none
  # failed: how its ranks ended is unknown, because the process that watched them was killed too, or its node no longer knows
  # the container. None of its processes is left.
  lost @11 :Bool;
}

enum ImageState { absent @0; pulling @1; here @2; }

interface Agent {
  # Orders for containers carry the `epoch` of the ordering Controller (registerNode); 0: none. EPERM: a newer Controller has replaced
  # it; on a start also: the container was stopped or forgotten, or a later attempt of its job has begun here. EBUSY: a container of
  # another attempt still runs here (one of an earlier attempt is being stopped). Try again.
  startContainer @0 (spec :ContainerSpec) -> (status :ContainerStatus);   # idempotent per id
  stopContainer @1 (id :Text $required, graceMs :Int32, epoch :UInt64) -> ();       # an unknown id is fine; limited to the container's own grace
  listContainers @2 () -> (containers :List(ContainerStatus));
  # One slice of a rank's output; offset < 0 counts from the end.
  readLog @3 (id :Text $required, rank :Int32, offset :Int64, maxBytes :UInt32)
          -> (data :Data, offset :Int64, size :Int64, finished :Bool);
  forgetContainer @4 (id :Text $required, epoch :UInt64) -> ();                     # deletes record and logs of an ended container
  info @5 () -> (node :NodeInfo, telemetry :Telemetry);

  # The node's store: L1 of its devices, L2 of its memory. Copies are whole shards under their own id.
  storeInfo @6 () -> (tiers :List(TierInfo), dataAddress :Text, migrateAddress :Text, socketPath :Text);
  # Makes a copy here: from `source` into `tier` (L1 or L2). Answered once the copy is verified and sealed. Idempotent.
  storeCopy @7 (request :CopyRequest) -> (copy :Copy);
  # Sends the copy in this node's L2 to another node's L2 (migration network) or to L3 (backbone).
  storeSend @8 (request :CopyRequest) -> (copy :Copy);
  # `epoch` of the following: of the calling Controller (registerNode); 0: none. EPERM: a newer Controller has replaced it.
  storeDrop @9 (id :Text $required, tier :Tier $required, device :Text, epoch :UInt64) -> (dropped :Bool);
  storeList @10 (cursor :UInt64, limit :UInt32, epoch :UInt64) -> (copies :List(Copy), next :UInt64);
  # For readers on other nodes: the location of copies in this node's L2 (offsets into the region served at dataAddress).
  storeLocate @11 (ids :List(Text), epoch :UInt64) -> (extents :List(Extent)) $maxValues(1048576);
  metrics @12 () -> (text :Text);   # Prometheus text format
  # Reads a copy here and verifies its checksums; device "" = all devices of the tier. ENOENT: no copy.
  storeVerify @13 (id :Text $required, tier :Tier $required, device :Text, epoch :UInt64) -> (ok :Bool, badChunks :List(UInt32));
  # Replaces the rank table of a container that was started with one, and the address where its ranks meet (HELIOS_MEETING);
  # "" = unchanged. ENOENT: the container is not here. Idempotent.
  putRankTable @14 (id :Text $required, document :Text, epoch :UInt64, meeting :Text) -> ();
  # The first of `ports` that is free here and was not handed out recently. EBUSY: none.
  findPort @15 (ports :List(UInt16)) -> (port :UInt16);
  options @16 () -> (options :List(OptionValue));
  # A reader of this node is about to read that shard from L3: fetches it once for all readers of the node and caches it in the L2 while
  # the rule and the space allow. Such a copy is in no list and no catalogue. ENOSPC, EBUSY, EUNSUPPORTED: the reader must fetch it.
  storeKeep @17 (request :CopyRequest) -> (copy :Copy);
  # Reads of the L2 by a process since its last report; they decide which copies stay cached.
  storeReads @18 (reads :List(ShardReads)) -> ();
  # Cancels the copies of that migrationId, except those that other calls have requested too. Their calls fail with ECANCELED.
  storeStop @19 (migrationId :Text $required, epoch :UInt64) -> (stopped :UInt32);
  # Tests the whole node now, even while ranks run; takes at most 5 s.
  testHealth @20 () -> (health :Health);
  # The lines of the kernel's log about an out-of-memory kill of that process, or of the last one in that rank's control group; "" = none.
  killEvidence @21 (pid :Int32, sinceMs :Int64, container :Text, rank :Int32) -> (text :Text);
  # Makes an image available here before a container needs it, by a pull in the background. Answered at once; poll it. A pull that is
  # not polled for five minutes is cancelled. pinned: the name that means the same bytes on every node, once the image is here.
  prepareImage @22 (image :Text $required) -> (state :ImageState, pinned :Text, text :Text);   # text: progress of the pull, or why it failed
  # Kills the process of one rank; its container treats this as a failure. False: `pid` no longer has the rank's place.
  endRank @23 (id :Text $required, rank :Int32, pid :Int32, epoch :UInt64) -> (ended :Bool);
  # Copies of that shard that reads have cached here.
  storeKept @24 (id :Text $required) -> (copies :List(Copy));
  # Ends containers of another, silent Agent of this machine, the one with that NodeInfo.stateDirectory. ended: how many were running.
  endStrays @25 (ids :List(Text), stateDirectory :Text, epoch :UInt64) -> (ended :UInt32);
  # Ids of the running containers of that Agent.
  listStrays @26 (stateDirectory :Text, epoch :UInt64) -> (ids :List(Text));
}
# bad: its checksum failed; a cached copy is then verified, and dropped if it is bad.
struct ShardReads { id @0 :Text $required; count @1 :UInt32; bad @2 :Bool; }

# read: the target pulls a copy, for lowest latency; write: the source pushes it, for highest bandwidth;
# migrate: the shard moves from host to host.
enum Operation { read @0; write @1; migrate @2; }

# How bytes were or would be transferred; decided by core/copies/route.h. none: impossible.
enum RoutePath {
  unsaid @0 $word("");
  none @1;
  localCopy @2 $word("local-copy");
  mapped @3;               # shared memory, read in place
  direct @4;               # RDMA between the memories themselves
  plank @5;                # staged through host memory, overlapped
  tcp @6;                  # the owner's CPU takes part
  ucxTagged @7 $word("ucx-tagged");
  zmq @8;
  archiveLoad @9 $word("archive-load");
  archiveStore @10 $word("archive-store");
}

# Why that path; core/copies/route.c has the texts.
enum RouteReason {
  unsaid @0 $word("");
  readToArchive @1 $word("read-to-archive");
  unreachable @2;
  archiveIn @3 $word("archive-in");
  archiveOut @4 $word("archive-out");
  sameHost @5 $word("same-host");
  sharedMemory @6 $word("shared-memory");
  hostFirst @7 $word("host-first");
  migrationNet @8 $word("migration-net");
  migrationNetDown @9 $word("migration-net-down");
  backboneDown @10 $word("backbone-down");
  backboneWrite @11 $word("backbone-write");
  oneSided @12 $word("one-sided");
  directRetry @13 $word("direct-retry");
  directFailed @14 $word("direct-failed");
  noRdma @15 $word("no-rdma");
  nicClass @16 $word("nic-class");
  device @17;
}

# One copy of a shard.
struct Copy {
  id @0 :Text;
  tier @1 :Tier $required;
  node @2 :Text;           # serverId; "" = the L3 host
  device @3 :Text;         # "emu:0" for L1, else ""
  numaId @4 :Int32;
  sizeBytes @5 :UInt64;
  crc32 @6 :UInt32 $shown("hex");
  path @7 :RoutePath;      # how it was transferred; unset = its holder found it in place
  reason @8 :RouteReason;
  transport @9 :Text;      # shm rdma tcp emulated zmq file, as measured
  seconds @10 :Float64;    # duration of its transfer
  createdMs @11 :Int64;
  kept @12 :Bool;          # cached by a read: in no catalogue, and evicted when space is needed
}

struct CopyRequest {
  id @0 :Text $required;
  sizeBytes @1 :UInt64;
  crc32 @2 :UInt32 $shown("hex");
  tier @3 :Tier;           # of the target: L1 L2 (storeCopy), L2 L3 (storeSend)
  device @4 :Text;         # of the target; "" = the nearest to numaId, else the first
  numaId @5 :Int32;        # preferred; -1 = any
  sourceTier @6 :Tier;     # unset = L3
  sourceNode @7 :Text;     # "" = L3
  sourceHostId @8 :Text;
  sourceAddress @9 :Text;      # RPC of the source: L3 daemon or Agent
  sourceDataAddress @10 :Text; # data address of the source
  targetAddress @11 :Text;     # storeSend: migrateAddress of the Agent, or dataAddress of L3
  operation @12 :Operation;
  timeoutMs @13 :UInt32;
  sourceDevice @14 :Text;      # an L1 of the called Agent
  sourceSocket @15 :Text;      # Unix socket of the source, for a target on its host
  targetHostId @16 :Text;      # storeSend
  targetSocket @17 :Text;      # storeSend: Unix socket of the target
  targetDataAddress @18 :Text; # storeSend: data address of the target, when the migration network is down
  migrationId @19 :Text;       # the same for all attempts of an order, so that storeStop cancels them and a repeated
                               # storeSend sends only what is missing; "" = random
  epoch @20 :UInt64;           # of the ordering Controller; 0: none
  bytesPerS @21 :UInt64;       # rate limit of the copy; 0 = none
}

# ---- shards --------------------------------------------------------------------------------------

# damaged: its record can't be read.
enum ShardState { lost @0; damaged @1; sealed @2; }

struct Shard {
  id @0 :Text;
  model @1 :Text; version @2 :Int64; pp @3 :Int32; tp @4 :Int32;
  part @5 :Text;           # "embedding", "layer-0003" (global number), "head", "optim-layer-0003", ...
  sizeBytes @6 :UInt64;
  crc32 @7 :UInt32 $shown("hex");
  tensors @8 :UInt32;
  state @9 :ShardState;
  location @10 :Tier;      # of its first copy
  accesses @11 :UInt64;
  lastAccessMs @12 :Int64;
  copies @13 :List(Copy);  # known copies, including L3 and L4
  layout @14 :Text;        # its tensors, as in core/model/layout.h: NAME TAB DTYPE TAB EXTENTS LF, sorted; only towards the Controller,
                           # and where getShard is asked for it
  renamed @15 :Bool;       # requestShards: only the tensors in `shown` belong to the position, under those names
  shown @16 :List(ShownTensor);
  ep @17 :Int32;           # experts only: the expert parallel rank; `tp` is then the rank within etp
  tensorCrcs @18 :Text;    # CRC-32 of every tensor, 8 hexadecimal digits each, in the order of `layout`; only towards the
                           # Controller; "" = the client is older
  derived @19 :Bool;       # belongs to a Cut, not to what the version's ranks saved
  derivedSplit @20 :Text;  # "TP2 x EP4": the split of the Cut; "" = not derived
  life @21 :Text;          # listShards: as ShardPlacement.state; "" = not placed
  heat @22 :Float64;       # likewise
  gone @23 :Bool;          # getShard: lost, and no absent daemon can have it, so waiting is pointless
}

# ---- placement: how shards are used, and where they are moved because of it (core/placement) ----
# The texts `reason` and `numbers` (the meaning of `value` and `limit`) come from core/placement/lifecycle.h.

struct ShardReader { node @0 :Text; accesses @1 :Float64; }   # within the window, most frequent first
struct ShardChange {
  timeMs @0 :Int64;
  from @1 :Text; to @2 :Text;   # states
  reason @3 :Text;
  node @4 :Text;           # destination or location of the shard; "" = the L3 host
  value @5 :Float64; limit @6 :Float64; numbers @7 :Text;
}
# The decision of the last pass.
struct ShardDecision {
  timeMs @0 :Int64;
  reason @1 :Text; value @2 :Float64; limit @3 :Float64; numbers @4 :Text;
  tier @5 :Tier; node @6 :Text;   # the destination
  gainSeconds @7 :Float64; costSeconds @8 :Float64;   # of a move that was considered, else 0
  carriedOut @9 :Bool;     # false: placement.policy only observes
  backbonePercent @10 :Float64;   # load of the backbone, which has raised `limit`; -1 = unknown or irrelevant
}
struct ShardPlacement {
  id @0 :Text;
  state @1 :Text; sinceMs @2 :Int64;
  tier @3 :Tier; node @4 :Text;           # its place: that of the nearest copy
  goalTier @5 :Tier; goalNode @6 :Text;   # destination while it moves; else unset
  pinned @7 :Bool; pinnedVersion @8 :Bool;
  heat @9 :Float64; stability @10 :Float64; fluidity @11 :Float64;
  accesses @12 :UInt32; windowMs @13 :Int64;   # accesses within the window of windowMs
  lastAccessMs @14 :Int64 = -1 $nullable;      # null: no known access
  moves @15 :UInt32;
  readers @16 :List(ShardReader);
  changes @17 :List(ShardChange);              # the newest first
  decision @18 :ShardDecision;                 # reason "": none
  refusedBy @19 :List(Text);                   # nodes that have other bytes under this id
}
# A move of a shard; `phase` as in core/migration.
struct ShardMove {
  id @0 :Text; shard @1 :Text;
  phase @2 :Text;
  fromTier @3 :Tier; fromNode @4 :Text;
  tier @5 :Tier; node @6 :Text;           # the destination
  keepSource @7 :Bool;     # the source copy stays
  reason @8 :Text; value @9 :Float64; limit @10 :Float64; numbers @11 :Text;
  gainSeconds @12 :Float64; costSeconds @13 :Float64;   # expected: what readers save, how long the copy takes
  seconds @14 :Float64;    # duration so far, or in total
  priority @15 :UInt32;
  sizeBytes @16 :UInt64;
  beganMs @17 :Int64;
  error @18 :Text;         # why it was undone
}

# Location of a shard in the pool: what a remote reader needs for a one-sided read.
struct Extent {
  id @0 :Text;
  offset @1 :UInt64;       # from the start of the pool
  sizeBytes @2 :UInt64;
  crc32 @3 :UInt32 $shown("hex");
  generation @4 :UInt32;
  chunkCrcs @5 :List(UInt32) $shown("hex");  # one per MiB or part of it
}

# none: no archive; writeBehind: the Controller's sweep archives visible versions.
enum ArchiveMode { none @0 $word(""); manual @1; writeBehind @2 $word("write-behind"); }

struct PoolInfo {
  uuid @0 :Text;
  incarnation @1 :Text;
  hostId @2 :Text;
  socketPath @3 :Text;     # Unix socket where clients get the read-only descriptor
  capacityBytes @4 :UInt64;
  usedBytes @5 :UInt64;
  quarantinedBytes @6 :UInt64;
  shards @7 :UInt64;
  dataAddress @8 :Text;    # host:port of the data protocol
  poolPath @9 :Text;
  freeBytes @10 :UInt64;   # upper bound of the largest shard that fits now
  tiers @11 :List(TierInfo);   # L3, and L4 if there is an archive
  archiveMode @12 :ArchiveMode;
  cluster @13 :Text;       # the owner; "" = unclaimed
  revision @14 :UInt64;    # newest revision of the owner's catalogue that the pool has seen
  manifests @15 :UInt64;   # manifests of versions, not counted in `shards`
  backbone @16 :LineLoad;  # of the L3 host
}

# A shard in the archive's trash, kept for archive.trash_keep.
struct Trashed {
  id @0 :Text;
  sizeBytes @1 :UInt64;
  trashedMs @2 :Int64;
  place @3 :Text;          # below the archive's URL
}

# A stored shard or manifest, described by its own bytes.
struct Found {
  id @0 :Text;
  tier @1 :Tier;           # L3, L4; unset = in neither
  sizeBytes @2 :UInt64;
  crc32 @3 :UInt32 $shown("hex");
  error @4 :Text;          # why it can't be read; the following is then unset
  manifest @5 :Text;       # JSON; "" = not a manifest
  model @6 :Text; version @7 :Int64; pp @8 :Int32; tp @9 :Int32; part @10 :Text;   # from the header of a shard in L3
  tensors @11 :UInt32;
  layout @12 :Text;
  ep @13 :Int32;
}

# How a version is split among its ranks. In a request 0 means the version's own value; all 0 = unset.
struct Split {
  tp @0 :Int32; pp @1 :Int32;
  virtualStages @2 :Int32;      # chunks per stage, 1 = none; 0 = the version's, if it has as many stages
  firstStageLayers @3 :Int32;   # 0 = the version's, if it has as many stages, else even
  lastStageLayers @4 :Int32;
  ep @5 :Int32 $optional;       # ranks among which the experts of a layer are distributed
  etp @6 :Int32 $optional;      # ranks among which an expert is split, a divisor of tp; in a version 0 = tp, and ep 0 = 1
}

# A tensor of a shard, and its name for a rank of another split.
struct ShownTensor { stored @0 :Text; shown @1 :Text; }

# Padding rows of the vocabulary: copies of the last row, or zeros.
enum VocabPadding { repeat @0; zero @1; }
# Megatron-core's layer names: its local ones, or those of Transformer Engine.
enum LayerNaming { local @0; te @1; }

struct ImportRequest {
  importId @0 :Text;
  dir @1 :Text;
  name @2 :Text;
  version @3 :Int64;
  tp @4 :Int32; pp @5 :Int32;   # of the stored shards; 0 = 1
  vocabDivisor @6 :Int32;       # 0 = 128
  pad @7 :VocabPadding;
  naming @8 :LayerNaming;
  firstStageLayers @9 :Int32;   # 0 = even
  lastStageLayers @10 :Int32;
  virtualStages @11 :Int32;     # chunks per stage, 0 or 1 = none
  base @12 :Text;               # LoRA adapters: the model that it was trained for, whose split it gets
  baseConfig @13 :Text;         # of that model; the Controller fills it in
  ep @14 :Int32;                # 0 = 1
  etp @15 :Int32;               # 0 = tp
  iteration @16 :Text;          # Megatron checkpoints: a number or "release"; "" = the newest
  optimizer @17 :Bool;          # Megatron checkpoints: import the optimizer's state too
  unsliced @18 :Bool;           # store whole tensors, even of a known family
  waitMs @19 :UInt64;           # how long it may wait for other imports; 0: fail with EBUSY instead
}

enum ImportState { running @0; done @1; failed @2; }

struct ImportProgress {
  importId @0 :Text;
  state @1 :ImportState;
  error @2 :Text;
  errorStatus @3 :Text;
  doneBytes @4 :UInt64;
  totalBytes @5 :UInt64;
  seconds @6 :Float64;
  shards @7 :List(Shard);       # when done
  config @8 :Text;              # JSON: ModelConfig
  meta @9 :Text;                # JSON for the version; "" = none
  waitsFor @10 :List(Text);     # the imports ahead of it while it is queued; empty = begun
}

# A running import; its model is not listed yet.
struct ImportSummary {
  importId @0 :Text;
  name @1 :Text;
  dir @2 :Text;
  tp @3 :Int32; pp @4 :Int32;
  doneBytes @5 :UInt64;
  totalBytes @6 :UInt64;        # 0 = unknown
  queued @7 :Bool;              # waits for other imports
}

# Requests derived shards: those of a version at another tensor parallel size, made from its own.
struct CutRequest {
  importId @0 :Text;            # as for an import: used to poll and to cancel it
  model @1 :Text; version @2 :Int64;
  config @3 :Text;              # JSON: ModelConfig for the version's own split
  split @4 :Split;              # to cut for; all sizes are set
  shards @5 :List(Shard);       # of the version; only those that can be cut
}

# The copy in the pool was good, was replaced, or can't be replaced.
enum HealState { lost @0; good @1; healed @2; }

# Which pools may be claimed. own: the cluster's own and empty ones; adopt: also unclaimed ones with shards; take: any.
enum ClaimMode { own @0; adopt @1; take @2; }
# unclaimed: holds shards of an unknown owner; newer: has seen a newer catalogue; other: belongs to another cluster.
enum ClaimResult { other @0; newer @1; unclaimed @2; claimed @3; }   # from worst to best

interface L3 {
  poolInfo @0 () -> (pool :PoolInfo);
  # Returns at once; idempotent per importId. `cluster`: as in `free`, but optional.
  importModel @1 (request :ImportRequest, cluster :Text) -> ();
  importProgress @2 (importId :Text $required) -> (progress :ImportProgress);
  cancelImport @3 (importId :Text $required) -> ();
  # ENOENT names the missing shard. migrationId: of an order, for `stop`; "" = none. givesWay: the load is not urgent: it evicts
  # nothing from the pool (ENOSPC), and it is cancelled when other loads need the archive (EBUSY).
  locate @4 (ids :List(Text), migrationId :Text, givesWay :Bool) -> (extents :List(Extent)) $maxValues(1048576);
  inventory @5 (cursor :UInt64, limit :UInt32) -> (extents :List(Extent), next :UInt64);  # next 0 = end
  # Unknown ids are skipped. `cluster`: the caller's; EPERM if the pool is claimed by another one.
  free @6 (ids :List(Text), cluster :Text) -> (freed :UInt32) $maxValues(1048576);
  # tier: L3 (also if unset) or L4. A copy in the archive is good or bad as a whole; crc32: of a good one.
  verify @7 (id :Text $required, tier :Tier) -> (ok :Bool, badChunks :List(UInt32), crc32 :UInt32, crc32Known :Bool);

  # L4. `locate` first loads shards that are only archived.
  archive @8 (ids :List(Text), migrationId :Text)
          -> (archived :UInt32, bytes :UInt64) $maxValues(1048576);  # one that is there already is fine; answered once durable
  # Removes shards from memory if they are archived and not pinned. `cluster`: as in `free`. kept: shards that stay: they are
  # pinned, or the archive has no good copy of them now.
  evict @9 (ids :List(Text), cluster :Text) -> (evicted :UInt32, bytes :UInt64, kept :UInt32) $maxValues(1048576);
  # Permanently, or into the trash. `cluster`: as in `free`; it must own pool and archive.
  dropArchived @10 (ids :List(Text), cluster :Text, trash :Bool) -> (dropped :UInt32) $maxValues(1048576);
  # crc32: 0 or the stated one (`stateArchived`) as long as it has not been read.
  listArchived @11 (cursor :UInt64, limit :UInt32) -> (extents :List(Extent), next :UInt64);
  # Checks a suspicious copy in the pool, and replaces it from the archive or from `sources` if it is bad.
  heal @12 (id :Text $required, sources :List(CopyRequest)) -> (state :HealState, source :Text);
  metrics @13 () -> (text :Text);
  touch @14 (ids :List(Text)) -> () $maxValues(1048576);   # were read through the mapping: evict them last
  options @15 () -> (options :List(OptionValue));

  # Binds pool and archive to one cluster, both or neither. `revision`: of its catalogue, is recorded. `seen`: the newest revision of its
  # own that the caller knows; if a newer one is recorded here, the caller's catalogue is outdated. Unless the state is `claimed`,
  # nothing was changed. The other results describe what was found, or after a success the new state.
  claim @16 (cluster :Text $required, revision :UInt64, seen :UInt64, mode :ClaimMode)
        -> (state :ClaimResult, cluster :Text, revision :UInt64, shards :UInt64,
            archiveCluster :Text, archiveRevision :UInt64, archived :UInt64, trashed :UInt64,
            archiveDamaged :Bool);      # the archive's record of its owner can't be read
  listTrash @17 (cursor :UInt64, limit :UInt32) -> (trashed :List(Trashed), next :UInt64);
  # Restores shards from the trash. Ids that are not in it are skipped. `cluster`: as in `free`.
  untrash @18 (ids :List(Text), cluster :Text) -> (restored :UInt32) $maxValues(1048576);

  # Stores what the catalogue knows of a version (core/catalog/manifest.h) in the pool beside its shards; idempotent. `inventory`,
  # `listArchived`, `archive`, `free` and the like treat it as a shard; counts of shards exclude it.
  putManifest @19 (manifest :Text $required, cluster :Text) -> ();    # `cluster`: as in `free`
  # Read from the stored bytes; the answer is in the order of the ids.
  describe @20 (ids :List(Text)) -> (found :List(Found));
  # Which of these exist, sealed in the pool or in the archive, without loading or reading them. Unknown ids are left out.
  # crc32Known: false for an archived copy whose checksum has not been read yet.
  look @21 (ids :List(Text)) -> (shards :List(FoundShard)) $maxValues(1048576);
  # Returns at once; idempotent per importId. Poll it with importProgress, cancel it with cancelImport. The ids of the new shards
  # mark them as derived: they are evicted first. `cluster`: as in `importModel`.
  cutShards @22 (request :CutRequest, cluster :Text) -> () $maxValues(1048576);
  # Cancels loads of `locate` and stores of `archive` under that migrationId, unless other calls wait for the same ones. Their calls
  # fail with ECANCELED.
  stop @23 (migrationId :Text $required) -> (stopped :UInt32);
  # Sets which shards are evicted from a full pool first, in this order; all others follow by last use. Which shards may be evicted at
  # all does not change. Valid until the next call, at most ttlMs. `cluster`: as in `free`.
  orderEviction @24 (ids :List(Text), cluster :Text, ttlMs :UInt32) -> () $maxValues(1048576);
  # Says which CRC-32 the catalogue has of archived shards; of each extent only id and crc32 count. A copy whose CRC-32 the archive
  # has not kept is checked against it. Unknown ids are skipped. `cluster`: as in `dropArchived`.
  stateArchived @25 (extents :List(Extent), cluster :Text) -> () $maxValues(1048576);
}
struct FoundShard { id @0 :Text; sizeBytes @1 :UInt64; crc32 @2 :UInt32; crc32Known @3 :Bool; tier @4 :Tier; }

# ---- models --------------------------------------------------------------------------------------

enum VersionState { open @0; visible @1; failed @2; }

struct ModelVersion {
  version @0 :Int64;
  state @1 :VersionState;
  step @2 :Int64;
  job @3 :Text;
  createdMs @4 :Int64;
  visibleMs @5 :Int64;
  shards @6 :UInt32;
  bytes @7 :UInt64;
  meta @8 :Text $shown("json");   # JSON of rank 0
  error @9 :Text;
  importSeconds @10 :Float64;
  committedRanks @11 :UInt32;
  world @12 :UInt32;
  lostShards @13 :UInt32;  # visible versions: lost, or with a damaged record; `error` names them
  split @14 :Split;        # its own
  cuts @15 :List(Cut);     # its derived shards
  proved @16 :Bool;        # verified at its import or last commit: every element of each logical tensor is present, replicas are equal
  unproved @17 :Text;      # what is not proved, and why; "" = not visible, or written by an earlier release
  # Only in getModel: versions.durability, the number of shards in too few failure domains for it, and where the first of them is.
  durability @18 :Text;
  lackingShards @19 :UInt32;
  lacking @20 :Text;
  # Only in getModel, of a visible version: the heat of its hottest shard; `model pin` holds it; no reader of it waits for the archive.
  heat @21 :Float64;
  pinned @22 :Bool;
  inMemory @23 :Bool;
}

# Derived shards of a version; they may be evicted at any time and are cut again on request.
struct Cut {
  split @0 :Split;         # of one stage; other numbers of stages are views of it
  shards @1 :UInt32;
  bytes @2 :UInt64;
  leftOut @3 :Text;        # parts of the version that are missing, and why; "" = none
}

struct Model {
  name @0 :Text;
  tp @1 :Int32; pp @2 :Int32;
  virtualStages @3 :Int32;
  architecture @4 :Text;
  dtype @5 :Text;
  parameters @6 :UInt64;
  config @7 :Text $shown("json"); # JSON: ModelConfig
  source @8 :Text;
  createdMs @9 :Int64;
  latest @10 :Int64;       # newest visible version, -1 = none
  versions @11 :List(ModelVersion);
}

struct AccessReport {
  id @0 :Text; count @1 :UInt64; bytes @2 :UInt64;
  path @3 :Text;           # shm rdma tcp emulated
  crcFailures @4 :UInt32;  # bad pieces, healed or not
  retries @5 :UInt32;
  lost @6 :Bool;           # stayed bad after every retry
  ageMs @7 :UInt32;        # age of the last access when the report was sent
  tier @8 :Tier;           # where the process read it: L2 of its node, or L3; unset = an older client
}

# One process's report about one shard. Times are the Controller's, in recordAccesses only.
struct ShardAccess {
  id @0 :Text; node @1 :Text;   # "" = of no node
  sizeBytes @2 :UInt64;         # 0 = the Controller does not know the shard
  atMs @3 :Int64;               # of the last access
  spanMs @4 :UInt32;            # all accesses were within this time before atMs
  count @5 :UInt32;
  write @6 :Bool;               # a commit of the shard
}

# A network; inside: within a host, no network. Numbers as in base/plane.h.
enum Plane { inside @0; backbone @1; migration @2; management @3; }

# Transfers of a rank since its last report, by plane and path.
struct TransferReport {
  plane @0 :Plane;
  operation @1 :Operation;
  path @2 :RoutePath $required;
  reason @3 :RouteReason $required;
  failed @4 :Bool;
  sent @5 :Bool;           # direction, seen from the rank
  ops @6 :UInt64;
  bytes @7 :UInt64;
  latency @8 :List(UInt64);  # histogram of the timed ones: entry i counts those of up to 2^i us / 4
  latencyNs @9 :UInt64;    # their sum
}

# Data that a rank has refused, healed or given up since its last report.
struct FaultReport {
  cause @0 :Text;
  path @1 :Text;
  count @2 :UInt64;
}

# ---- jobs ----------------------------------------------------------------------------------------

struct PlanRank { rank @0 :Int32; pp @1 :Int32; tp @2 :Int32; dp @3 :Int32; localRank @4 :Int32; gpu @5 :Text; cp @6 :Int32 $optional; knownAs @7 :Int32 = -1 $optional; }   # knownAs: its rank when its container was started; -1 = rank
# address, gpus: of a spare slot, where the ranks of a lost container continue (core/planner/spares.h); "" = not a spare slot.
# joining, leaves: of a gang that changes its size (core/planner/resize.h): its future ranks; it no longer has ranks.
struct PlanContainer {
  index @0 :Int32; node @1 :Text; numaId @2 :Int32; cpus @3 :Text; ranks @4 :List(PlanRank);
  address @5 :Text $optional; gpus @6 :List(Text) $optional;
  joining @7 :List(PlanRank) $optional; leaves @8 :Bool $optional;
}

struct Plan {
  containers @0 :List(PlanContainer);
  worldSize @1 :Int32;
  ranksPerContainer @2 :Int32;
  arithmetic @3 :List(Text);
  warnings @4 :List(Text);
  feasible @5 :Bool;
  reason @6 :Text;         # why not
  masterNode @7 :Text;
  never @8 :Bool;          # infeasible even if every slot were free: submitJob refuses it
}

struct DefragMove { job @0 :Text; containers @1 :Int32; from @2 :List(Text); to @3 :List(Text); }   # nodes
# moves: the smallest set of gangs to move, by number and then by size; empty: none of the examined sets of up to three gangs makes
# enough room. nodes: where the job would then run. allTried: every such set was examined.
struct Defrag { moves @0 :List(DefragMove); nodes @1 :List(Text); allTried @2 :Bool; }

# How the ranks are started. Only the names of variables: values may be secrets.
struct JobLaunch {
  file @0 :Text;           # absolute path of the job file on the submitter's machine; "" = standard input
  command @1 :List(Text);  # empty = the image's own
  workdir @2 :Text;        # "" = the image's own
  variables @3 :List(Text);  # of the job file
  exported @4 :List(Text);   # of the submitter
  venv @5 :Text;
  conda @6 :Text;
  python @7 :Text;
  nodeLostAfterMs @8 :Int64; # 0 = Kubernetes's own
  onNodeLost @9 :Text;     # restart or fail
  recovery @10 :Text;      # after the loss of a rank: restart or replace
  spares @11 :Int32;       # processes parked in each container
  endsHung @12 :Bool; endsSlow @13 :Bool;  # the process of a hanging or slow rank is ended
  replicas @14 :Int32;     # ranks with the same parameters
  backoffMs @15 :Int64; backoffMaxMs @16 :Int64;  # delay between two attempts, or processes, without a new step
  stableAfterMs @17 :Int64;  # after this time without a failure, the count of used restarts is reset
  onFailure @18 :List(KeyValue);  # kind or exit code: fail, count or ignore
  spareSlots @19 :Int32;   # slots on other servers, for lost containers
}

struct JobEvent { timeMs @0 :Int64; attempt @1 :Int32; kind @2 :Text; text @3 :Text; }

enum JobState { pending @0; starting @1; running @2; stopping @3; succeeded @4; failed @5; cancelled @6; }

# Why a pending job does not run: the closed list of `helios explain` (docs/queues.md).
enum WaitReason {
  none @0 $word("");
  notEnoughFreeSlots @1 $word("NotEnoughFreeSlots");
  notEnoughSlotsEver @2 $word("NotEnoughSlotsEver");
  quotaExceeded @3 $word("QuotaExceeded");
  priorityBehind @4 $word("PriorityBehind");
  reservedFor @5 $word("ReservedFor");
  serverDraining @6 $word("ServerDraining");
  waitingForRecovery @7 $word("WaitingForRecovery");
  versionUnavailable @8 $word("VersionUnavailable");
  topologyUnsatisfiable @9 $word("TopologyUnsatisfiable");
  gpuMemoryTooSmall @10 $word("GpuMemoryTooSmall");
  nicClassMissing @11 $word("NicClassMissing");
  serverReserved @12 $word("ServerReserved");
  backOff @13 $word("BackOff");
}
enum SlotUse { free @0; busy @1; notReady @2 $word("not-ready"); }
struct SlotCount { use @0 :SlotUse; slots @1 :Int32; servers @2 :Int32; }
struct JobExplanation {
  id @0 :Text;
  state @1 :JobState;
  reason @2 :WaitReason;
  text @3 :Text;           # the reason as a sentence
  other @4 :Text;          # the job named by the reason; "" = none
  remedy @5 :Text;         # what would make it run
  startMs @6 :Int64;       # estimate; 0 = unknown
  queue @7 :Text;
  priority @8 :Int32;
  place @9 :Int32;         # in the queue of pending jobs, from 1; 0 = not pending
  pending @10 :Int32;      # pending jobs in all
  slots @11 :Int32;        # needed
  counts @12 :List(SlotCount);   # of the cluster
}
struct QueueInfo {
  name @0 :Text;
  weight @1 :Int32;
  quota @2 :Int32;         # slots; 0 = none
  preempt @3 :Bool;
  slots @4 :Int32;         # held now
  running @5 :Int32; pending @6 :Int32;   # jobs
  used @7 :Float64;        # past use of slots, decayed: the share is (slots + used) / weight
}
struct QueuedJob {
  id @0 :Text;
  place @1 :Int32;
  queue @2 :Text;
  priority @3 :Int32;
  slots @4 :Int32;
  reason @5 :WaitReason;
  other @6 :Text;
  startMs @7 :Int64; submittedMs @8 :Int64;
}

struct Job {
  id @0 :Text;
  name @1 :Text;
  state @2 :JobState;
  reason @3 :Text;
  attempt @4 :Int32;
  maxRestarts @5 :Int32;
  model @6 :Text;
  submittedMs @7 :Int64; startedMs @8 :Int64; finishedMs @9 :Int64;
  yaml @10 :Text;
  plan @11 :Plan;
  containers @12 :List(ContainerStatus);
  events @13 :List(JobEvent);
  worldSize @14 :Int32;
  restarts @15 :Int32;     # used, of maxRestarts
  nodeLosses @16 :Int32;   # attempts that ended with a lost node; they do not count as restarts
  cause @17 :Text;         # why this attempt was begun; "" = first attempt
  launch @18 :JobLaunch;
  warning @19 :Text;       # of its containers or its record; "" = none
  failures @20 :List(JobFailure);  # of attempts, the newest last, without their logs
  ledger @21 :JobLedger;
  queue @22 :Text; priority @23 :Int32;
  image @24 :Text;         # what dockerImage was resolved to: REPOSITORY@sha256:..., or an id; "" = not yet, or no image
  nextAttemptMs @25 :Int64;      # when a job in backoff is placed again; 0 = no backoff
  lastFailure @26 :FailureKind;  # of the last attempt that failed
  # For a range of data parallel sizes: the current replicas, the range, and how often this attempt has changed its size.
  replicas @27 :Int32 $optional; replicasMin @28 :Int32 $optional; replicasMax @29 :Int32 $optional;
  resizes @30 :Int32 $optional;
}

# unset: no failure. lost: with its node, or with the process that watched it there. mistake: an exit code that a restart would repeat (2,
# 64 to 78, 126, 127). stall: ended by the Controller because it hung or was slow. save: it exited while it wrote a version.
enum FailureKind {
  unsaid @0 $word(""); exit @1; signal @2; memory @3; launch @4; lost @5; mistake @6; stall @7; save @8;
}
# The rank of an attempt that failed first, by the time of its end.
struct JobFailure {
  attempt @0 :Int32;
  rank @1 :Int32 = -1;     # -1 = not one rank: the container did not start, or its node was lost
  node @2 :Text; container @3 :Text;
  kind @4 :FailureKind;
  exitCode @5 :Int32; signal @6 :Int32;
  timeMs @7 :Int64;        # of its end, by its node's clock, corrected by the offset that the Controller knows
  message @8 :Text;
  evidence @9 :Text;       # lines of the kernel's log that show an out-of-memory kill; "" = none
  laterRanks @10 :Int32;   # number of ranks that failed after it in this attempt
  log @11 :Text;           # its last lines, at most 200 lines and 64 KiB
  logMissing @12 :Text;    # why the log is missing
}

# How a job spent its wall time. The parts add up to wallMs, even if clocks were set meanwhile.
struct JobLedger {
  wallMs @0 :Int64;
  queueMs @1 :Int64;       # waiting for slots
  placeMs @2 :Int64;       # from the plan until all nodes have accepted their containers
  pullMs @3 :Int64;        # waiting for prefetched shards
  startMs @4 :Int64;       # until the first step is reported
  stepMs @5 :Int64;        # of steps done for the first time
  saveMs @6 :Int64;        # steps waiting for saves
  stallMs @7 :Int64;       # steps that took more than twice the usual time
  lostMs @8 :Int64;        # from the last step before a failure until the attempt had ended completely
  replayMs @9 :Int64;      # of steps repeated after a failure
  steps @10 :Int64; replayed @11 :Int64;
  tokens @12 :UInt64;
  goodput @13 :Float64;    # stepMs / wallMs
  reported @14 :Bool;      # ranks report steps; if not, stepMs is all the time in which they run without failing
  imageMs @15 :Int64;      # waiting for nodes that pull the image
}

# exact: names, shapes and dtypes; anyDtype: names and shapes; unchecked: anything goes.
enum LayoutCheck { exact @0; anyDtype @1 $word("any-dtype"); unchecked @2; }

interface Controller {
  # Agents
  # epoch: grows with each start of a Controller of the cluster; from then on, orders of older Controllers are refused.
  # EEXIST, or a text in `refused`: another Agent has the name. The Agent then ends those of its containers that are in `strays`, which no
  # job needs any more. endsStrays: the Agent reads `refused` and `strays`; without it, it gets only EEXIST.
  # lostMs: after a silence of this length, jobs may continue without the node; it starts nothing until it is heard again. 0: unset.
  registerNode @0 (node :NodeInfo, containers :List(ContainerStatus), endsStrays :Bool)
               -> (heartbeatMs :Int32, cluster :Text, epoch :UInt64, refused :Text, strays :List(Text), lostMs :Int64) $maxValues(262144);
  # known = false: the Controller does not know this incarnation; register again.
  heartbeat @1 (name :Text $required, incarnation :Text $required, telemetry :Telemetry, containers :List(ContainerStatus),
                tiers :List(TierInfo), storeEpoch :UInt64,
                health :Health)   # timeMs 0 = nothing new: each result is reported once
            -> (known :Bool,
                shardsLeft :UInt64,   # a changed number: shards have left the catalogue
                requests :List(ChunkRequest)) $maxValues(262144);   # of other tiers nothing is asked any longer

  # Models
  importModel @2 (request :ImportRequest) -> (importId :Text, version :Int64);
  importProgress @3 (importId :Text $required) -> (progress :ImportProgress);
  listModels @4 () -> (models :List(Model), imports :List(ImportSummary));
  getModel @5 (name :Text $required) -> (model :Model);
  # version -1 = all. EBUSY if an unfinished job or an open version needs it, unless `force`.
  removeModel @6 (name :Text $required, version :Int64, force :Bool) -> (shards :UInt32, bytes :UInt64);

  # Ranks and tools. version -1 = the newest visible version without lost shards.
  # pp, tp and ep are a position in `split`; if that is unset, in the split that the version was saved with. Shards are cut for one tp,
  # ep and etp; another number of stages only changes which shards belong to a position and how their tensors are named.
  requestShards @7 (model :Text $required, version :Int64, pp :Int32, tp :Int32, split :Split, ep :Int32) -> (shards :List(Shard), version :Int64, meta :Text, config :Text, l3Address :Text,
      skipped :Text,   # newer visible versions, and what each lacks
      split :Split,    # of the version, or as requested
      # The version is being cut for that tensor parallel size. There are no shards yet; ask again. The call waits a while before
      # it returns this.
      cutting :Bool, doneBytes :UInt64, totalBytes :UInt64,
      leftOut :Text,   # parts of the version that this split can't have, and why; "" = none
      queued :Bool);   # `cutting` has not begun, because L3 runs the maximum number of others: the bytes are theirs
  listShards @8 (model :Text, version :Int64, cursor :Text, limit :UInt32) -> (shards :List(Shard), next :Text);
  # A process numbers its reports from 1 under a random incarnation. Each number is applied once, so a report may be repeated until it
  # is answered. sequence 0: from an older client; placement ignores it.
  reportAccess @9 (node :Text, job :Text, rank :Int32, reports :List(AccessReport), transfers :List(TransferReport), faults :List(FaultReport),
                   incarnation :UInt64, sequence :UInt64) -> () $maxValues(262144);

  # A new version becomes visible once all `world` ranks have committed. A rank joins the oldest open version of (model, job, attempt,
  # generation, step) that it has not begun yet, or creates one. `token` is random for every save of a rank: a repeated message with
  # the same token gets the same number.
  # check: how much of the model's layout the parameters must keep. split: of the saving job, the same on every rank; unset: the one
  # that the model was imported with.
  # generation: counts how often the gang has met. Saves of two generations are two versions, and unfinished ones of an earlier
  # generation are dropped. 0: the gang never meets again.
  # create: a model that does not exist is created with this split, and removed again unless a version becomes visible.
  # config: its Hugging Face config.json, "" = none; for an existing model it must be the same.
  # container: HELIOS_CONTAINER of the rank, here and in commitPart; -1 = unset. ECONFLICT: its ranks continue in another container.
  beginVersion @10 (model :Text $required, job :Text, attempt :Int32, step :Int64, world :Int32, rank :Int32, token :Text, check :LayoutCheck,
                   split :Split, create :Split, config :Text, generation :UInt32, container :Int32 = -1) -> (version :Int64, state :VersionState);
  # May be repeated with the same shards. ECANCELED: another rank has abandoned the version.
  # securing: all ranks have committed, and copies are being made in as many failure domains as versions.durability requires; ask again.
  # A rank that does not set `waits` is answered only once the copies exist.
  commitPart @11 (model :Text $required, version :Int64, rank :Int32, shards :List(Shard), meta :Text, waits :Bool, container :Int32 = -1)
             -> (visible :Bool, committed :Int32, securing :Bool, doneBytes :UInt64, totalBytes :UInt64) $maxValues(262144);

  # Jobs
  # Both make the same checks. A relative or missing workdir of the job is relative to `cwd`, where the user submits it.
  # `exported` overrides variables of the job file; the job file overrides `inherited`. `file` is only shown.
  # defrag: also compute which running gangs would have to restart elsewhere so that the job fits; nothing is moved.
  planJob @12 (yaml :Text, source :Text, cwd :Text, exported :List(KeyValue), inherited :List(KeyValue), file :Text, defrag :Bool)
          -> (plan :Plan, launch :JobLaunch, defrag :Defrag);
  submitJob @13 (yaml :Text, source :Text, idempotencyKey :Text, cwd :Text, exported :List(KeyValue),
                 inherited :List(KeyValue), file :Text) -> (id :Text);
  listJobs @14 () -> (jobs :List(Job));            # without plan, events, yaml
  # `id` of a job may be its name. It then means the unfinished job of that name, else the newest; ECONFLICT names the ids if several
  # are unfinished.
  getJob @15 (id :Text $required) -> (job :Job);
  cancelJob @16 (id :Text $required) -> (state :JobState, id :Text);
  # A slice of what a rank wrote in one attempt; offset < 0 counts from the end. rank -1: the one that failed first, else 0.
  # attempt 0: the last one that was placed. The job's state at the time of the call is returned with it.
  readLog @17 (id :Text $required, rank :Int32, offset :Int64, maxBytes :UInt32, attempt :Int32)
          -> (data :Data, offset :Int64, size :Int64, finished :Bool, rank :Int32, attempt :Int32,
              lastAttempt :Int32,       # the newest; it may still be waiting for slots
              failedRank :Int32 = -1,   # the rank that failed first in this attempt, once the attempt has ended
              job :Text, jobState :JobState, jobReason :Text);

  # Cluster
  listNodes @18 () -> (nodes :List(NodeState));
  clusterInfo @19 () -> (info :ClusterInfo);

  # Copies. `node` "" and tier L3 or L4 mean the L3 host. Answered once the copy exists. `tensors`: return `layout` and `tensorCrcs` too.
  getShard @20 (id :Text $required, tensors :Bool) -> (shard :Shard, routes :List(Route));
  copyShard @21 (id :Text $required, node :Text, tier :Tier $required, device :Text, operation :Operation) -> (copy :Copy);
  dropCopy @22 (id :Text $required, node :Text, tier :Tier $required, device :Text) -> (dropped :Bool);
  metrics @23 () -> (text :Text);
  # A reader found a copy bad after every retry; the Controller has it checked and replaced.
  reportBadCopy @24 (id :Text $required, node :Text, tier :Tier $required) -> (state :HealState, source :Text);
  # Which rank has which device, as JSON for collective libraries; format v1, v2, 1.2, "" = the job's.
  rankTable @25 (id :Text $required, format :Text) -> (document :Text);
  # By import id, or by the name of a model that is being imported. The model never becomes visible, and its shards are freed.
  cancelImport @26 (id :Text $required) -> (importId :Text);
  options @27 () -> (options :List(OptionValue));   # the Controller's own
  # A rank can't complete its part: the version fails, and the other ranks get the reason. ECONFLICT: it is already visible.
  # ids: shards that the rank has stored but not committed; they are freed too.
  abandonVersion @28 (model :Text $required, version :Int64, rank :Int32, reason :Text, ids :List(Text)) -> () $maxValues(262144);
  # After a loss of the Controller's state: restores versions from the manifests in pool and archive, then claims both. If there are
  # shards that no manifest names, nothing is claimed, unless `discard`: it restores nothing, claims both, and removes what the catalogue
  # does not know (in the archive: into the trash). dryRun: changes nothing. ECONFLICT: the claim is valid already. May be repeated.
  recover @29 (dryRun :Bool, discard :Bool) -> (recovery :Recovery);
  # Sets an option that may change while the Controller runs (docs/placement.md), until the Controller ends. EINVAL names the allowed
  # values. note: why it currently has no effect; "" = it has.
  setOption @30 (name :Text $required, value :Text) -> (option :OptionValue, note :Text);
  # Placement. moveShard is answered when the move has ended. ECONFLICT: the shard is pinned or already moving; ECANCELED: the move was
  # cancelled. cancelMove: ECONFLICT if readers already use the new copy.
  shardPlacement @31 (id :Text $required) -> (placement :ShardPlacement);
  # bytesPerS: rate limit, not for the archive; 0 = none.
  moveShard @32 (id :Text $required, node :Text, tier :Tier $required, bytesPerS :UInt64) -> (move :ShardMove);
  # Moves in flight, then those that have ended lately, newest first. rest: why moves of the policy are paused; "" = they aren't.
  # backbonePercent: load of the backbone, -1 = unknown; thresholdAccesses: policy.migrate_base, raised by that load.
  listMoves @33 () -> (moves :List(ShardMove), rest :Text, backbonePercent :Float64, thresholdAccesses :Float64);
  cancelMove @34 (id :Text $required) -> (move :ShardMove); # id of the move, or of its shard
  # Neither the policy nor moveShard moves a pinned shard away. id "": all shards of the version.
  pin @35 (id :Text, model :Text, version :Int64, pinned :Bool) -> (changed :Bool);
  # Accesses of shards in the order of their reports, at most `limit`, starting at `next` of the previous answer. recording 0: begins
  # now. They are kept while they are polled, and for a minute longer. ENOENT: the recording has ended, or the Controller was restarted.
  recordAccesses @36 (recording :UInt64, cursor :UInt64, limit :UInt32)
                 -> (recording :UInt64, next :UInt64, accesses :List(ShardAccess), nowMs :Int64,
                     lost :UInt64);   # entries since `cursor` that were overwritten
  # Which of these shards are not in the catalogue.
  goneShards @37 (ids :List(Text)) -> (gone :List(Text)) $maxValues(1048576);
  # drained: nothing new is placed on the node, and what runs there continues; false ends that. ENOENT: no such node; EUNSUPPORTED:
  # Kubernetes places the jobs.
  drainNode @38 (name :Text $required, drained :Bool, reason :Text) -> (changed :Bool);
  # Makes the node test itself now; the result decides whether it gets containers.
  testNode @39 (node :Text $required) -> (health :Health);
  # attempt 0: the last failed one. ENOENT: none has failed.
  firstFailure @40 (id :Text $required, attempt :Int32) -> (failure :JobFailure);
  # Why a pending job waits; the pending jobs in their order, and the queues.
  explainJob @41 (id :Text $required) -> (explanation :JobExplanation);
  listQueue @42 () -> (queues :List(QueueInfo), jobs :List(QueuedJob));
  # Reserves all of these nodes or none: gangs whose time limit would reach into the reservation don't start there; running ones continue.
  # It begins inMs from now and lasts forMs; forMs 0 removes the nodes' reservations. A node has at most one; a new one replaces it.
  # untilMs 0: no reservation.
  reserveNodes @43 (names :List(Text), inMs :Int64, forMs :Int64, reason :Text) -> (fromMs :Int64, untilMs :Int64);
  # The current position of a process in its gang, if the job may change its size. Called each time the gang meets, and by rank 0 after
  # all have saved. number: counts the sizes of the attempt from 0; if it differs from the gang's, the ranks must leave and meet again.
  # waits: why the process has no position yet, ask again; "" = env has the variables that depend on the size. ENOENT: the process no
  # longer belongs to the gang.
  joinGang @44 (job :Text $required, attempt :Int32, container :Int32, localRank :Int32) -> (number :Int32, waits :Text, env :List(KeyValue));
}

struct Recovery {
  claim @0 :ClaimState;    # now
  why @1 :Text;            # of a refused claim
  cluster @2 :Text;        # id, now; dryRun: as it would be
  versions @3 :List(RecoveredVersion);   # from manifests that the catalogue does not know
  left @4 :List(LeftShards);             # shards of no version
  known @5 :UInt32;        # versions with a manifest that are in the catalogue
  restored @6 :UInt32;     # versions restored; dryRun: that would be
  restoredShards @7 :UInt64;
  untrashed @8 :UInt64;    # shards restored from the archive's trash
}
enum RecoveryState { skipped @0; restored @1; }
struct RecoveredVersion {
  model @0 :Text; version @1 :Int64; step @2 :Int64; visibleMs @3 :Int64;
  shards @4 :UInt64; bytes @5 :UInt64;
  state @6 :RecoveryState;
  reason @7 :Text;         # of a skipped version
}
struct LeftShards {
  model @0 :Text; version @1 :Int64;     # by their own headers; "" = not read
  shards @2 :UInt64; bytes @3 :UInt64;
  tier @4 :Tier;           # L3, L4
  reason @5 :Text;
}

# How a node would read a copy of a shard now, and why.
struct Route {
  node @0 :Text;
  source @1 :Text;         # "L2 of node-1", "L3"
  path @2 :RoutePath;
  reason @3 :RouteReason;
  text @4 :Text;           # the reason as a clause
  target @5 :Tier;         # L1 or L2 of the node
}

struct SlotState { numaId @0 :Int32; job @1 :Text; container @2 :Text; }
enum NodeLife { lost @0; ready @1; }
struct NodeState {
  node @0 :NodeInfo;
  state @1 :NodeLife;
  lastHeartbeatMs @2 :Int64;
  telemetry @3 :Telemetry;
  slots @4 :List(SlotState);
  drainedMs @5 :Int64;     # since when nothing new is placed there; 0 = not drained
  drainReason @6 :Text;
  reason @7 :Text;         # why it gets no new containers although it is not drained; "" = it does
  clockAheadMs @8 :Int64;  # of the Controller's, including the unknown delay of a heartbeat
  reservedFromMs @9 :Int64;    # for maintenance; reservedUntilMs 0 = not reserved
  reservedUntilMs @10 :Int64;
  reservedReason @11 :Text;
}
# unknown: L3 does not answer; refused: pool and archive must not be changed, l3State says why.
enum ClaimState { unknown @0; ok @1; refused @2; }
struct ClusterInfo {
  version @0 :Text;
  l3Address @1 :Text;
  l3State @2 :Text;        # ready, or why not: it does not answer, or this Controller may not change its pool
  pool @3 :PoolInfo;
  models @4 :UInt32; versions @5 :UInt32; shards @6 :UInt32;
  jobs @7 :UInt32; nodes @8 :UInt32;
  crcFailures @9 :UInt64; crcRetries @10 :UInt64; lostReads @11 :UInt64;
  reads @12 :List(PathCount);
  kubernetesServer @13 :Text;   # which runs the containers; "" = the Agents run them
  kubernetesState @14 :Text;    # ready, or why not
  cluster @15 :Text;            # id of the cluster, created with the Controller's state
  revision @16 :UInt64;         # of the catalogue; grows with every change
  claim @17 :ClaimState;
  damagedRecords @18 :List(Text);  # keys of unreadable records in the Controller's store, and why
  kubernetesWarning @19 :Text;  # features that it does without, and why; "" = none
  kubernetesEngine @20 :Text;   # what starts the pods of a gang together; "" = unknown yet
}
struct PathCount { path @0 :Text; ops @1 :UInt64; bytes @2 :UInt64; }

# What `helios net -o json` shows: the combined counters of the daemons. An unknown number is null.
struct NetPlane {
  daemon @0 :Text;         # "ranks": from the ranks' reports to the Controller
  plane @1 :Text;
  address @2 :Text;
  interface @3 :Text;
  receivedOps @4 :UInt64;
  sentOps @5 :UInt64;
  receivedBytes @6 :UInt64;
  sentBytes @7 :UInt64;
  failed @8 :UInt64;
  p50Us @9 :Float64;
  p99Us @10 :Float64;
  rateBitsPerSecond @11 :Float64;
  busyPercent @12 :Float64;
}
struct NetPath {
  daemon @0 :Text;
  operation @1 :Text;
  path @2 :Text;
  reason @3 :Text;
  text @4 :Text;           # the reason as a clause
  result @5 :Text;
  ops @6 :UInt64;
}
struct NetFault { daemon @0 :Text; cause @1 :Text; path @2 :Text; count @3 :UInt64; }
struct NetError { daemon @0 :Text; error @1 :Text; }
struct NetUse {
  planes @0 :List(NetPlane);
  paths @1 :List(NetPath);
  faults @2 :List(NetFault);
  errors @3 :List(NetError);   # daemons that did not answer
}

# ---- a cluster on one machine --------------------------------------------------------------------

# The ready file of a daemon, written once it serves.
struct DaemonReady {
  address @0 :Text $required;
  pid @1 :Int32;
  metrics @2 :Text;        # where /metrics is; "" = nowhere
  name @3 :Text $optional;           # of the Agent's node
  dataAddress @4 :Text $optional;    # L3, Agent
  migrateAddress @5 :Text $optional; # Agent
  storeSocket @6 :Text $optional;    # Agent
  socket @7 :Text $optional;         # L3
  pool @8 :Text $optional;           # L3: the file
  incarnation @9 :Text $optional;    # Agent
}

struct DaemonEnd { how @0 :Text; at @1 :Int64; }   # "killed by signal 9 (Killed)"; ms since 1970
struct LocalDaemon {
  key @0 :Text;            # l3d, controllerd, node-0, node-1, ...
  pid @1 :Int32;
  start @2 :UInt64;        # start of the process, in clock ticks after the boot: distinguishes it from another one with its pid
  ready @3 :Bool;          # it has served; the following comes from its ready file
  fills @4 :Text;          # pool file that it creates at its start; "" = none
  address @5 :Text $optional;
  metrics @6 :Text $optional;
  name @7 :Text $optional;
  dataAddress @8 :Text $optional;
  migrateAddress @9 :Text $optional;
  storeSocket @10 :Text $optional;
  socket @11 :Text $optional;
  pool @12 :Text $optional;
  restarts @13 :Int32 $optional;     # by the supervisor, since `helios up`
  end @14 :DaemonEnd $optional;      # the last one
  incarnation @15 :Text $optional;
}
struct LocalSupervisor { pid @0 :Int32; start @1 :UInt64; }
# Current options of each program, as `helios conf` names them.
struct LocalSettings {
  l3 @0 :List(KeyValue) $map;
  controller @1 :List(KeyValue) $map;
  agent @2 :List(KeyValue) $map;
}
struct LocalContent { models @0 :Int64 = -1 $optional; versions @1 :Int64 = -1 $optional; jobs @2 :Int64 = -1 $optional; }

# STATE/cluster.json.
struct LocalCluster {
  state @0 :Text;          # the directory
  pool @1 :Text;           # the file
  nodes @2 :Int32;
  nodesEver @3 :Int32;     # the most that it ever had
  slots @4 :Int32;         # of a node; 0 = its NUMA nodes
  executor @5 :Text;
  serving @6 :Text $optional;        # its TCP address; "" = Unix sockets
  flags @7 :List(KeyValue) $map;     # given to this `helios up` or an earlier one
  environment @8 :List(KeyValue) $map;
  settings @9 :LocalSettings $optional;
  secretFile @10 :Text $optional;
  l3 @11 :Text $optional;            # addresses
  socket @12 :Text $optional;        # of L3's pool
  controller @13 :Text $optional;
  kept @14 :LocalContent $optional;  # by `helios down --keep`
  supervisor @15 :LocalSupervisor $optional;
  daemons @16 :List(LocalDaemon) $map $rest;
}
# The members of that file that a caller of the cluster reads.
struct LocalAddress { controller @0 :Text; secretFile @1 :Text; }
struct LocalStart { started @0 :List(Text); restarted @1 :Bool; }
# What `helios down -o json` prints.
struct LocalStop {
  stopped @0 :List(Text);
  removed @1 :Bool;
  kept @2 :Bool;
  state @3 :Text;
  pool @4 :Text $optional;
  poolBytes @5 :Int64 = -1 $optional;
  models @6 :Int64 = -1 $optional;
  versions @7 :Int64 = -1 $optional;
  jobs @8 :Int64 = -1 $optional;
}
# Daemons that have ended since `helios up`.
struct LocalEnd { name @0 :Text; runs @1 :Bool; restarts @2 :Int32; end @3 :DaemonEnd; }
struct LocalEnds { ends @0 :List(LocalEnd); }

# ---- what the command line prints with -o json ---------------------------------------------------

# helios conf: an option, its current value, and the daemons that have it.
struct OptionInfo {
  name @0 :Text;
  value @1 :Text;          # as OptionValue
  origin @2 :Text;
  default @3 :Text $optional;        # from here on absent for an option that the command line does not know
  help @4 :Text $optional;
  flag @5 :Text $optional;
  argument @6 :Text $optional;       # placeholder of the value in --help
  env @7 :Text $optional;
  programs @8 :List(Text) $optional;
  daemons @9 :List(Text) $optional;  # only of a running cluster
}
struct OptionInfos { items @0 :List(OptionInfo); }

struct ImportResult {      # helios model import
  name @0 :Text; version @1 :Int64;
  tp @2 :Int64; pp @3 :Int64;
  shards @4 :UInt64; bytes @5 :UInt64;
  seconds @6 :Float64; bytesPerSecond @7 :UInt64;
  unsliced @8 :Bool;       # stored whole: every rank reads all of it
  unslicedBecause @9 :Text $optional;
  ep @10 :Int64; etp @11 :Int64;
  leftOut @12 :List(Text); # parts of a Megatron checkpoint that the model lacks
}
struct MetricsText { daemon @0 :Text; text @1 :Text; }   # helios metrics
struct ImportCancelled { name @0 :Text; cancelled @1 :Bool; }
# helios model rm; version -1: all of them, and the model.
struct ModelRemoved { name @0 :Text; version @1 :Int64; shards @2 :UInt32; bytes @3 :UInt64; }
struct PullResult {        # helios pull
  model @0 :Text; version @1 :Int64; pp @2 :Int64; tp @3 :Int64;
  parts @4 :UInt64;
  naming @5 :LayerNaming;
  path @6 :Text;
  bytes @7 :UInt64; seconds @8 :Float64; bytesPerSecond @9 :UInt64;
  crcFailures @10 :UInt64; retries @11 :UInt64;
  skipped @12 :Text;       # as of requestShards
  ep @13 :Int64;
}
struct ReshardResult {     # helios model reshard
  name @0 :Text; version @1 :Int64;
  split @2 :Split;
  shards @3 :UInt64;       # derived ones; 0 = the version's own shards serve that split
  bytes @4 :UInt64;
  seconds @5 :Float64;
  leftOut @6 :Text;        # as of Cut
}
# helios shard show: the contents of a shard, and the findings about each copy.
struct TensorInfo { name @0 :Text; dtype @1 :Text; shape @2 :List(UInt64); offset @3 :UInt64; bytes @4 :UInt64; crc32 @5 :Text $optional; }
struct ShardPlaces { copies @0 :List(Copy); routes @1 :List(Route); state @2 :ShardState; }
enum CopyVerdict { unknown @0; ok @1; bad @2; }
struct VerifiedCopy {
  tier @0 :Tier; node @1 :Text; device @2 :Text;
  state @3 :CopyVerdict;
  sizeBytes @4 :UInt64;
  error @5 :Text;
  badChunks @6 :List(UInt32);
}
struct Verification { ok @0 :Bool; copies @1 :List(VerifiedCopy); }
# helios shard show, for a shard in the pool and for any other one; members that were not requested are left out.
struct PooledShard {
  extent @0 :Extent $flatten;
  tensors @1 :List(TensorInfo);
  verify @2 :Verification;
  places @3 :ShardPlaces $flatten;
  placement @4 :ShardPlacement;
}
struct AbsentShard { shard @0 :Shard $flatten; routes @1 :List(Route); verify @2 :Verification; placement @3 :ShardPlacement; }
struct Pinned { id @0 :Text; model @1 :Text; version @2 :Int64; pinned @3 :Bool; changed @4 :Bool; }   # helios shard pin, helios model pin
struct ModelVerification { # helios model verify
  model @0 :Text; version @1 :Int64;
  ok @2 :Bool;                  # no troubles
  shards @3 :UInt64; copies @4 :UInt64; tensors @5 :UInt64; bytes @6 :UInt64;   # that were read; bytes: of all copies
  proved @7 :Bool;
  unproved @8 :Text;            # what is not proved, and why
  troubles @9 :List(Text);
  archived @10 :UInt64;         # shards that are in no pool and so were read from the archive, as a whole; the checksums of
                                # their tensors are those of the commit
  onNodes @11 :UInt64;          # shards that are in no pool or archive and so were read on their nodes; otherwise as `archived`
}
struct TensorForm { dtype @0 :Text; shape @1 :List(UInt64); }
struct TensorDifference {  # of a logical tensor
  name @0 :Text;
  a @1 :TensorForm $optional; b @2 :TensorForm $optional;   # absent if the version does not have the tensor
  elements @3 :UInt64;          # compared ones: those of both, if dtype and shape are equal
  differing @4 :UInt64;
  first @5 :List(UInt64);       # index of the first one that differs
  largest @6 :Float64;          # of |a - b|, of floats
  notFinite @7 :UInt64;         # differing floats of which one is infinite or NaN; not counted in `largest`
}
struct DiffedVersion { model @0 :Text; version @1 :Int64; split @2 :Split; }
struct ModelDiff {         # helios model diff
  a @0 :DiffedVersion; b @1 :DiffedVersion;
  equal @2 :Bool;               # of all that was compared
  tensors @3 :UInt64;           # that were compared
  byChecksum @4 :UInt64;        # of these, by checksum alone, without reading bytes
  bytesRead @5 :UInt64;         # of both
  differing @6 :UInt64;         # tensors, including those that only one version has
  items @7 :List(TensorDifference);   # the differing ones, at most --max
  byPlace @8 :Text $optional;   # why tensors are compared as stored
  notCompared @9 :List(Text);
}
struct StoreTiers { node @0 :Text; tiers @1 :List(TierInfo); }   # "" = the L3 host
struct Stores { items @0 :List(StoreTiers); }   # helios store
struct ClusterReport { info @0 :ClusterInfo $flatten; ends @1 :LocalEnds $flatten; }      # helios info
struct LocalUp { cluster @0 :LocalCluster $flatten; start @1 :LocalStart $flatten; }      # helios up
struct Topology { machine @0 :Text; slots @1 :List(Slot); }   # helios topo
# An item of helios model ls is one of the two; helios model show has a model.
struct ModelInfo { model @0 :Model $flatten $optional; import @1 :ImportSummary $flatten $optional; state @2 :Text; }
struct ExportedFiles {
  model @0 :Text; version @1 :Int64;
  out @2 :Text;
  files @3 :UInt32; bytes @4 :UInt64; seconds @5 :Float64;
}
struct HfExportResult {    # helios model export --format hf
  files @0 :ExportedFiles $flatten;
  config @1 :Text $optional;     # the file that describes the tensors; absent if the model has none
  leftOut @2 :List(Text);
  optimizer @3 :UInt64;          # tensors of optimizer state, in the folder of that name
}
struct TorchExport { iteration @0 :Int64 = -1 $nullable; args @1 :Bool; megatron @2 :Text; }
struct ExportResult {      # helios model export
  files @0 :ExportedFiles $flatten;
  naming @1 :LayerNaming;
  optimizer @2 :Bool;      # it was written
  leftOut @3 :List(Text); warnings @4 :List(Text);
  torch @5 :TorchExport $flatten $optional;
}
struct PlannedJob { plan @0 :Plan $flatten; launch @1 :JobLaunch; defrag @2 :Defrag $optional; }   # helios plan
struct ClusterLoad { timeMs @0 :Int64; nodes @1 :List(NodeState); jobs @2 :List(Job); }   # helios top
struct LogPiece {          # helios logs
  job @0 :Text; attempt @1 :Int64; rank @2 :Int64;
  text @3 :Data $shown("text");
  offset @4 :Int64; size @5 :Int64;
  finished @6 :Bool;
}
struct NodeDrained { name @0 :Text; drained @1 :Bool; changed @2 :Bool; jobs @3 :List(Text); }   # helios node drain
struct NodesReserved { names @0 :List(Text); fromMs @1 :Int64; untilMs @2 :Int64; jobs @3 :List(Text); }   # helios node reserve
struct JobOutcome { id @0 :Text; state @1 :JobState; reason @2 :Text; }   # helios submit --wait

struct MemoryKind { kind @0 :Text; perParameter @1 :UInt64; bytes @2 :UInt64; }
struct MemoryChunks { bytes @0 :UInt64; count @1 :UInt64; utilisation @2 :Float64; }
struct MemoryHost { bytes @0 :UInt64; perProcess @1 :UInt64; }
struct MemoryDevice { smallest @0 :UInt64; widest @1 :Text; everything @2 :UInt64; }
struct MemoryShape { layers @0 :UInt64; hidden @1 :UInt64; }
struct MemoryEstimate {    # helios mem estimate
  parameters @0 :UInt64; dtype @1 :Text; world @2 :UInt64; gradients @3 :Text;
  kinds @4 :List(MemoryKind);
  bytes @5 :UInt64;
  chunks @6 :MemoryChunks;
  l2 @7 :MemoryHost;
  l1 @8 :MemoryDevice;
  assumed @9 :MemoryShape $optional;   # for a given number of parameters
}
struct KindBytes { kind @0 :Text; bytes @1 :UInt64; }
struct MemoryMoment {
  stage @0 :Text; op @1 :Text;
  available @2 :UInt64; chunks @3 :UInt64;
  device @4 :List(KindBytes) $map; host @5 :List(KindBytes) $map;
  h2d @6 :UInt64; d2h @7 :UInt64;
}
struct MemoryTrace {       # helios mem trace
  policy @0 :Text; mode @1 :Text; iteration @2 :UInt64; capacity @3 :UInt64;
  moments @4 :List(MemoryMoment);
}
struct MovedBytes { h2d @0 :UInt64; d2h @1 :UInt64; }
struct MemoryReplay {      # helios mem replay
  mode @0 :Text; policy @1 :Text;
  perIter @2 :List(MovedBytes) $word("per_iter");
  peakOverAvail @3 :UInt64 $word("peak_over_avail");
}

struct SimulationWorld {   # the world in which helios sim runs a trace
  accesses @0 :UInt64; loads @1 :UInt64; shards @2 :UInt64; nodes @3 :UInt64; bytes @4 :UInt64;
  seconds @5 :Float64;
  l1Bytes @6 :UInt64 $word("l1_bytes"); l2Bytes @7 :UInt64 $word("l2_bytes");
  l3Bytes @8 :UInt64 $word("l3_bytes");
  insideBps @9 :UInt64 $word("inside_bps"); migrationBps @10 :UInt64 $word("migration_bps");
  backboneBps @11 :UInt64 $word("backbone_bps"); archiveBps @12 :UInt64 $word("archive_bps");
  passMs @13 :UInt64 $word("pass_ms"); keepPct @14 :Float64 $word("keep_pct");
  keepL1Pct @15 :Float64 $word("keep_l1_pct");
  placement @16 :Text;
  warm @17 :Text;
}
struct SimulationHits { found @0 :Text; reads @1 :UInt64; }
struct SimulationBytes { path @0 :Text; read @1 :UInt64; moved @2 :UInt64; }
struct SimulationRun {      # of a simulated policy
  againP99S @0 :Float64 $word("again_p99_s");   # of loads that only read shards that were read before
  accessMeanS @1 :Float64 $word("access_mean_s");
  moves @2 :UInt64;
  hits @3 :List(SimulationHits) $map; bytes @4 :List(SimulationBytes) $map;
  plannedBytes @5 :UInt64 $word("planned_bytes");             # read by the nodes of planned gangs
  plannedLocalBytes @6 :UInt64 $word("planned_local_bytes");  # of these, in the node's memory when read
  aheadBytes @7 :UInt64 $word("ahead_bytes");                 # prefetched for gangs
  vainBytes @8 :UInt64 $word("vain_bytes");                   # of these, not read
}
struct SimulationPolicy {
  policy @0 :Text;
  bound @1 :Bool;          # a lower bound for every policy; not simulated
  waitS @2 :Float64 $word("wait_s"); waitMeanS @3 :Float64 $word("wait_mean_s");
  run @4 :SimulationRun $flatten $optional;
  waitP99S @5 :Float64 $word("wait_p99_s");
}
struct Simulation { world @0 :SimulationWorld; policies @1 :List(SimulationPolicy); }   # helios sim

struct TraceRecording {     # helios trace record
  out @0 :Text; seconds @1 :Float64;
  accesses @2 :UInt64; shards @3 :UInt64; nodes @4 :UInt64;
  before @5 :UInt64;       # accesses before the recording that were reported during it; left out
  unknown @6 :UInt64;      # accesses of shards that the Controller does not know; missing
  lost @7 :UInt64;         # entries that were overwritten before they were read; missing
}

struct BenchRow {
  system @0 :Text; op @1 :Text;
  size @2 :UInt64; n @3 :UInt64;
  minUs @4 :Float64 $word("min_us");
  p50Us @5 :Float64 $word("p50_us");
  p99Us @6 :Float64 $word("p99_us");
  meanUs @7 :Float64 $word("mean_us");
  gbPerS @8 :Float64 $word("gb_per_s");
}
enum BenchSide { none @0 $word(""); atMost @1 $word("at most"); atLeast @2 $word("at least"); }
struct BenchBound { bar @0 :Float64; bound @1 :BenchSide; met @2 :Bool; }
struct BenchRatio { name @0 :Text; value @1 :Float64; bound @2 :BenchBound $flatten $optional; }
struct BenchReport { rows @0 :List(BenchRow); ratios @1 :List(BenchRatio); }   # helios bench

# helios drill: the outcome of injected faults. Seconds since the fault.
struct DrillPhase { phase @0 :Text; p50Seconds @1 :Float64; p99Seconds @2 :Float64; maxSeconds @3 :Float64; }
struct DrillFault {
  fault @0 :Text;
  made @1 :UInt32;
  recovered @2 :UInt32;    # the gang made steps again
  named @3 :UInt32;        # the right rank was named first, if a rank must be named
  unnamed @4 :UInt32;      # another one was named, or none in time
  phases @5 :List(DrillPhase);
  wrong @6 :Text;          # the first wrong report: another rank or kind; "" = none
}
struct DrillRefusal { fault @0 :Text; reason @1 :Text; }   # a fault that can't be injected here
struct DrillReport {
  job @0 :Text;
  faults @1 :List(DrillFault);
  refused @2 :List(DrillRefusal);
  steps @3 :UInt64;        # observed, of all ranks
  repeated @4 :UInt64;     # of these: repeated after a fault
  differing @5 :UInt64;    # of the repeated: with another loss than before
  jumps @6 :UInt64;        # steps that do not directly follow the previous one in their generation
  missed @7 :UInt64;       # steps that were overwritten before they were observed
  doubted @8 :UInt64;      # steps made with a flipped bit, whose losses prove nothing
  cleanSteps @9 :UInt64;   # steps of the gang without any fault
  falseAlarms @10 :UInt64; # in the clean steps
  falseAlarm @11 :Text;    # the first one; "" = none
}

# Result of a row of the specification's section 6. absent: the hardware for it is missing; noRoom, noTime: not run, because that would
# take space or time from others; off: an option forbids it.
enum ValidationResult {
  fail @0; pass @1;
  absent @2 $word("not on this hardware"); noRoom @3 $word("not enough room"); noTime @4 $word("not enough time");
  off @5 $word("switched off");
}
struct ValidationRow {
  id @0 :Text;
  asks @1 :Text;           # what the specification requires
  result @2 :ValidationResult;
  found @3 :Text;          # in words; "" = nothing
  value @4 :Float64;       # the figure; null = none
  target @5 :Text;
  limit @6 :Float64;       # of the figure
  missing @7 :Text;        # why it was not run; "" = it was
  decidedOnly @8 :Bool;    # `found` is what would be done; no byte was moved
  seconds @9 :Float64;
}
struct Validation {        # helios validate
  model @0 :Text;          # created for the validation, and removed
  bytes @1 :UInt64;        # of that model
  node @2 :Text;           # where its ranks ran; "" = nowhere
  passed @3 :UInt32; failed @4 :UInt32; notRun @5 :UInt32;
  seconds @6 :Float64;
  rows @7 :List(ValidationRow);
}

# helios help --dump-json: the tree of commands, for man pages and shell completion.
struct HelpBounds { min @0 :Int64; max @1 :Int64; }
struct HelpOption {
  flags @0 :List(Text);
  value @1 :Text;          # placeholder of the value in --help
  type @2 :Text;
  default @3 :Text; help @4 :Text;
  choices @5 :List(Text) $optional;
  bounds @6 :HelpBounds $flatten $optional;
}
struct HelpArgument { name @0 :Text; required @1 :Bool; repeated @2 :Bool; }
struct HelpCommand {
  name @0 :Text; heading @1 :Text; summary @2 :Text; usage @3 :Text;
  arguments @4 :List(HelpArgument);
  options @5 :List(HelpOption);
}
struct HelpTree { program @0 :Text; version @1 :Text; options @2 :List(HelpOption); commands @3 :List(HelpCommand); }

# ---- Records of the Controller's store, as JSON. Members are added, never renamed. A record of an older release stays readable:
# a member that it lacks has the default given here. ----
# Of the catalogue.
struct ModelRecord {             # model/NAME
  name @0 :Text $required;
  tp @1 :Int32 $required; pp @2 :Int32 $required;
  virtualStages @3 :Int32 = 1;
  config @4 :Text $required;     # as Model.config
  source @5 :Text $required;
  createdMs @6 :Int64 $required;
  nextVersion @7 :Int64 $required;
}
# The text called `config` everywhere: of a model in the catalogue, of an import, of a split. In addition to these members it has
#   those of ModelSizes, if the model was sliced
#   stages        a list of stages, each a list of LayerRun: of its one chunk, or of its virtual stages
#   tensors       all that were read, if the model has scales (core/families/logical.h)
#   hfCopies      names of the checkpoint's tensors that repeat another one
#   hfQuantConfig hf_quant_config.json of ModelOpt
#   hf            Hugging Face's config.json, as it was
#   adapter.peft  PEFT's adapter_config.json, as it was
struct ModelConfig {
  architecture @0 :Text;         # of the family; without a family its model_type, or "unknown"
  dtype @1 :Text $optional;      # of the word embedding
  parameters @2 :UInt64 $optional;
  tp @3 :Int32; pp @4 :Int32;
  virtualStages @5 :Int32 = 1;
  ep @6 :Int32 $optional; etp @7 :Int32 $optional;   # of a family with experts
  unsliced @8 :Bool $optional;   # stored whole, at TP1 x PP1
  unslicedBecause @9 :Text $optional;
  asSaved @10 :Bool $optional;   # how its tensors are cut is unknown: only its own split can be read
  adapter @11 :ModelAdapter $optional;
  hfPrefix @12 :Text $optional;  # of the names in the checkpoint, if it is not the family's usual one
  megatron @13 :MegatronSource $optional;  # of a model that was imported from a Megatron checkpoint
}
# The source of the model; leftOut: parts of the checkpoint that the model lacks.
struct MegatronSource { format @0 :Text; iteration @1 :Int64; leftOut @2 :List(Text); }
struct ModelAdapter { base @0 :Text; }   # the model that it was trained for
struct ModelSizes {
  layers @0 :UInt64; hidden @1 :UInt64;
  heads @2 :UInt64; kvHeads @3 :UInt64; headDim @4 :UInt64;
  ffn @5 :UInt64;
  vocab @6 :UInt64; paddedVocab @7 :UInt64;
  maxPositions @8 :UInt64;
  tied @9 :Bool;                 # the head is the embedding
  normEps @10 :Float64;
  ropeTheta @11 :Float64;        # 0 = no rotary embedding
  naming @12 :LayerNaming; pad @13 :VocabPadding;
  vocabDivisor @14 :Int32 = 128; # paddedVocab is a multiple of this and tp
}
struct LayerRun { first @0 :UInt64 $required; count @1 :UInt64 $required; }
struct VersionRecord {           # version/MODEL/NUMBER
  version @0 :Int64 $required;
  state @1 :VersionState $required;
  step @2 :Int64 $required;
  job @3 :Text $required;
  attempt @4 :Int32 $required;
  world @5 :Int32 $required;
  check @6 :LayoutCheck = unchecked;
  createdMs @7 :Int64 $required;
  visibleMs @8 :Int64 $required;
  importSeconds @9 :Float64 $required;
  meta @10 :Text $required;
  error @11 :Text;               # why it failed
  shards @12 :Int64 = -1;        # number of shards; -1 = unset
  shardsSum @13 :Int64 = -1;     # checksum over them; -1 = not visible, or unset
  committed @14 :List(Int32);    # ranks
  split @15 :Split $optional;    # its own; unset: the model's
  proved @16 :Bool $optional;    # as ModelVersion.proved
  unproved @17 :Text $optional;
  generation @18 :UInt32 $optional; # of the gang within the attempt; 0 = the gang meets only once
}
struct ShardRecord {             # shard/MODEL/NUMBER/ID
  id @0 :Text $required;
  model @1 :Text $required; version @2 :Int64 $required;
  pp @3 :Int32 $required; tp @4 :Int32 $required;
  part @5 :Text $required;
  sizeBytes @6 :UInt64 $required;
  crc32 @7 :UInt32 $required;
  tensors @8 :UInt32 $required;
  state @9 :ShardState;          # when it was written; determined again later, like the next three
  location @10 :Tier;
  accesses @11 :UInt64;
  lastAccessMs @12 :Int64;
  rank @13 :Int32 = -1;          # that committed it; -1 = imported
  layout @14 :Text $optional;    # as Shard.layout
  ep @15 :Int32 $optional;       # of experts
  tensorCrcs @16 :Text $optional;   # as Shard.tensorCrcs
}

# The text of a manifest (core/catalog/manifest.h): the records of a version, of its model and of its shards.
struct ManifestForm { manifest @0 :Int32 $required; }
struct ManifestShard {
  id @0 :Text $required;
  pp @1 :Int32 $required; tp @2 :Int32 $required;
  rank @3 :Int32 $required;
  part @4 :Text $required;
  sizeBytes @5 :UInt64 $required;
  crc32 @6 :UInt32 $required;
  tensors @7 :UInt32 $required;
  layout @8 :Text $optional;
  ep @9 :Int32 $optional;        # of experts
  tensorCrcs @10 :Text $optional;
}
struct Manifest {
  manifest @0 :Int32 $required;  # the form
  id @1 :Text $required;
  cluster @2 :Text $required;    # that wrote it
  model @3 :ModelRecord $required;
  version @4 :VersionRecord $required;
  shards @5 :List(ManifestShard) $required;
}

# What follows when a job has stopped.
enum JobGoal { none @0; restart @1; fail @2; cancel @3; succeed @4; }
# `plan` of JobRun: Plan, and the address of its master.
struct PlanRecord {
  containers @0 :List(PlanContainer);
  worldSize @1 :Int32;
  ranksPerContainer @2 :Int32;
  arithmetic @3 :List(Text);
  warnings @4 :List(Text);
  feasible @5 :Bool;
  reason @6 :Text;
  masterNode @7 :Text;
  never @8 :Bool;
  masterAddress @9 :Text;
  nextIndex @10 :Int32 $optional;   # of the next container that joins; 0 = the number of containers
}
struct JobRunContainer {
  state @0 :ContainerState $required;
  exitCode @1 :Int32; signal @2 :Int32;
  message @3 :Text;
  startedMs @4 :Int64; finishedMs @5 :Int64;
  node @6 :Text;
  numaId @7 :Int32;
  lost @8 :Int32 $optional; # earlier containers of its ranks in this attempt that were lost
  failure @9 :FailureKind $optional; # if it failed: the kind
}
# `run` of job/ID (core/job/jobstate.h). It has a member `plan`, a PlanRecord, once it has been placed.
struct JobRun {
  id @0 :Text $required;
  state @1 :JobState $required;
  goal @2 :JobGoal $required;
  reason @3 :Text;
  attempt @4 :Int32 = 1;
  maxRestarts @5 :Int32;
  restarts @6 :Int32;
  nodeLosses @7 :Int32;
  startTimeoutMs @8 :Int64; runTimeoutMs @9 :Int64; stopResendMs @10 :Int64;
  submittedMs @11 :Int64; startedMs @12 :Int64; finishedMs @13 :Int64;
  deadlineMs @14 :Int64;
  containersAttempt @15 :Int32;
  slotsHeld @16 :Bool;
  containers @17 :List(JobRunContainer);
  restartLost @18 :Bool = true;
  cause @19 :Text;
  preemptor @20 :Text; preemptorAttempt @21 :Int32;   # the job that preempted it; "" = none
  placedMs @22 :Int64; releasedMs @23 :Int64;         # when its last attempt got its slots and released them
  usedSlotMs @24 :Int64;                              # of earlier attempts
  fruitless @25 :Int32;                               # failures in a row without a new step
  steadyMs @26 :Int64;                                # start of the budget's period: the last failure, or when all ran
  reached @27 :Int64;                                  # number of the highest step made before the last failure
  lastFailure @28 :FailureKind;
  retryMs @29 :Int64;                                 # earliest start of the next attempt; 0 = at once
  losses @30 :Int32;                                  # since the budget was last full
  countedMs @31 :Int64 $optional;                     # since when it has its current number of slots; 0 = since it was placed
  resizes @32 :Int32 $optional; resizedMs @33 :Int64 $optional;   # how often this attempt has changed its size; when it last did
}
# job/ID has these members, `run` and `doc`.
struct JobRecord {
  events @0 :List(JobEvent);     # the newest
  loadVersion @1 :Int64 = -1;    # the version that this attempt's ranks load; -1 = none
  port @2 :Int32;                # MASTER_PORT; 0 = chosen blindly
  portAttempt @3 :Int32 = -1;    # the attempt of `port`; -1 = the last one
  ledger @4 :JobLedgerRecord;
  image @5 :Text;                # what dockerImage was resolved to at first: REPOSITORY@sha256:..., or an id; "" = unknown yet
  gangMade @6 :Int32;            # the last attempt whose Volcano Job existed; 0 = none
  portContainer @7 :Int32 = -1 $optional; # the container of rank 0 when the port was found; -1 = the current one
}
struct JobLedgerRecord {
  parts @0 :List(UInt64);        # ms, in the order of core/ledger/ledger.h
  part @1 :Int32;                # the current part
  openMs @2 :Int64;              # duration of the ranks' run since the last report
  openSaveMs @3 :Int64;          # saves in that time
  bootId @4 :Text; bootMs @5 :Int64; wallMs @6 :Int64;   # when this was written, on both clocks
  step @7 :Int64 = -1; bestStep @8 :Int64 = -1; usualMs @9 :Int64;
  steps @10 :Int64; replayed @11 :Int64; tokens @12 :UInt64;
  reported @13 :Bool; over @14 :Bool;
  toldTokens @15 :UInt64; generation @16 :UInt32;        # of the last report
}
# failure/JOB/ATTEMPT is JobFailure.
# A job file with all that differs from the defaults (core/job/job.h); it is parsed like any job file.
struct JobSpecModel { name @0 :Text $optional; size @1 :Text $optional; version @2 :Int64 = -1 $optional; }
struct JobSpecDataset { path @0 :Text $optional; }
struct JobSpecGrid {
  pp @0 :Int32 $word("pipeline_parallel_size");
  tp @1 :Int32 $word("tensor_parallel_size");
  dp @2 :Int32 $word("data_parallel_size");
  order @3 :Text;
  virtualStages @4 :Int32 = 1 $word("virtual_pipeline_parallel_size") $optional;
  ep @5 :Int32 = 1 $word("expert_model_parallel_size") $optional;
  etp @6 :Int32 $word("expert_tensor_parallel_size") $optional;   # 0 = tp
  cp @7 :Int32 = 1 $word("context_parallel_size") $optional;
}
struct JobSpecResources {
  ranksPerSlot @0 :Int32 $word("ranks_per_slot") $optional;
  gpusPerRank @1 :Int32 = -1 $word("gpus_per_rank") $optional;
  cpusPerRank @2 :Int32 $word("cpus_per_rank") $optional;
  memory @3 :UInt64 $optional;
  gpuMemory @4 :UInt64 $word("gpu_memory") $optional;
  nicClass @5 :Text $word("nic_class") $optional;
}
# Each "LEVEL required" or "LEVEL preferred".
struct JobSpecPlacement { tensor @0 :Text $optional; pipeline @1 :Text $optional; data @2 :Text $optional; gang @3 :Text $optional; }
struct JobSpecTimeouts { start @0 :Text $optional; run @1 :Text $optional; }
struct JobSpecCheckpoint { every @0 :Int64 $optional; }
struct JobSpecRecovery {
  mode @0 :Text $optional; replacements @1 :Int32 = 10 $optional; stableAfter @2 :Text $optional;
  onHang @3 :Text $optional; onSlow @4 :Text $optional;
  backoff @5 :Text $optional; backoffMax @6 :Text $optional; growAfter @7 :Text $optional;
}
# It has a member `kubernetes` if the job file has one (core/job/podspec.h). In an elastic job, data_parallel_size is {min, max}.
struct JobSpec {
  jobName @0 :Text;
  model @1 :JobSpecModel $optional;
  dataset @2 :JobSpecDataset $optional;
  parallelism @3 :JobSpecGrid;
  dockerImage @4 :Text $optional;
  command @5 :List(Text) $optional;
  workdir @6 :Text $optional;
  venv @7 :Text $optional; conda @8 :Text $optional; python @9 :Text $optional;
  env @10 :List(KeyValue) $map $optional;
  mounts @11 :List(Text) $optional;
  resources @12 :JobSpecResources $optional;
  restarts @13 :Int32 $optional;
  nodeLostAfter @14 :Text $optional; onNodeLost @15 :Text $optional;   # times as "500ms"
  timeouts @16 :JobSpecTimeouts $optional;
  stopGrace @17 :Text $optional;
  checkpoint @18 :JobSpecCheckpoint $optional;
  rankTable @19 :Text $optional;
  placement @20 :JobSpecPlacement $optional;
  recovery @21 :JobSpecRecovery $optional;
  spares @22 :Int32 $optional;
  queue @23 :Text $optional; priority @24 :Int32 $optional;
  onFailure @25 :List(KeyValue) $map $optional;
  spareSlots @26 :Int32 $optional;
}
# The unchanging part of a job: `doc` has these members and `spec`, a JobSpec.
struct JobDoc {
  yaml @0 :Text;
  source @1 :Text;
  key @2 :Text;                  # idempotencyKey of the submission; "" = none
  launch @3 :JobLaunch;
  seq @4 :Int64;                 # the number in its id
  gang @5 :Text;                 # label of its objects in Kubernetes; "" = Agents run it
}
# node/NAME is NodeInfo, with these members in addition if the node is lost.
struct NodeAbsence { lostMs @0 :Int64; seenMs @1 :Int64; }
# Of a node that failed its health test: when, by the Controller's clock, and the time of the test that the node reports.
struct NodeFailure { failedMs @0 :Int64 $optional; failedTestMs @1 :Int64 $optional; }
struct NodeDrain { drainedMs @0 :Int64 $optional; drainReason @1 :Text $optional; }
struct NodeReservation { reservedFromMs @0 :Int64 $optional; reservedUntilMs @1 :Int64 $optional; reservedReason @2 :Text $optional; }
# queue/NAME: the use by forgotten jobs that still counted at that time (core/queue/queue.h).
struct QueueUse { used @0 :Float64 $required; atMs @1 :Int64 $required; }
struct JobNumber { last @0 :Int64 $required; }                # seq/job
# cut/MODEL/VERSION/tpN[-epN-etpN]: all shards of a cut in one record, so that there is never half of one.
struct CutShard {
  id @0 :Text $required; tp @1 :Int32; part @2 :Text $required; sizeBytes @3 :UInt64 $required; crc32 @4 :UInt32 $required;
  tensors @5 :UInt32; layout @6 :Text $required;
  ep @7 :Int32;
}
struct CutRecord {
  model @0 :Text $required; version @1 :Int64 $required;
  split @2 :Split $required;
  leftOut @3 :Text;
  shards @4 :List(CutShard) $required;
}
struct PinRecord { sinceMs @0 :Int64 $required; }             # pin/shard/ID, pin/version/MODEL/NUMBER
struct MoveRecord {                                           # move/ID: a move that has not ended
  shard @0 :Text $required;
  phase @1 :Text $required;      # as ShardMove
  fromTier @2 :Tier $required; fromNode @3 :Text;
  tier @4 :Tier $required; node @5 :Text;
  keepSource @6 :Bool;
  reason @7 :Text; value @8 :Float64; limit @9 :Float64;
  gainSeconds @10 :Float64; costSeconds @11 :Float64;
  priority @12 :UInt32;
  sizeBytes @13 :UInt64 $required; crc32 @14 :UInt32 $required;
  goalHad @15 :Bool;             # there was already a copy at the destination
  beganMs @16 :Int64 $required; switchedMs @17 :Int64;
  bytesPerS @18 :UInt64;         # 0: no limit of its own
}
# use/ID: the use of a shard and its life cycle, written occasionally. Times are wall-clock times.
struct UseReader { node @0 :Text $required; now @1 :UInt32; before @2 :UInt32; }   # accesses in this window and in the one before
struct UseChange {
  timeMs @0 :Int64 $required;
  from @1 :Text $required; to @2 :Text $required; reason @3 :Text $required;
  node @4 :Text; value @5 :Float64; limit @6 :Float64;
}
struct UseRecord {
  lastMs @0 :Int64 $required;    # 0 = never read
  lastNode @1 :Text;
  intervalMs @2 :Float64; intervalM2 @3 :Float64; intervals @4 :UInt32;
  recentMoves @5 :Float64; moves @6 :UInt32;
  windowMs @7 :Int64 $required;
  sliceMs @8 :Int64; slices @9 :List(UInt32);
  readersMs @10 :Int64; readers @11 :List(UseReader);
  tier @12 :Tier $required; node @13 :Text;
  placedMs @14 :Int64; changedMs @15 :Int64;
  changes @16 :List(UseChange);  # the newest first
}
struct ClusterId { id @0 :Text $required; }                   # cluster/id
struct CatalogRevision { revision @0 :UInt64 $required; }     # cluster/revision
struct ControllerEpoch { epoch @0 :UInt64 $required; }        # cluster/epoch

# Files stored beside the objects that they describe.
struct ArchiveOwner { cluster @0 :Text $required; revision @1 :UInt64 $required; }               # helios-cluster.json of an archive
struct ShimOptions { foreignTopology @0 :Bool $required; logMaxBytes @1 :UInt64 $required; executor @2 :Text $optional; }   # shim.json of a container
