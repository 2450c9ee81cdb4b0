# Helios control plane, version 1.
#
# Every daemon serves one bootstrap capability: helios-controller a Controller, helios-agent an Agent,
# helios-l3d an L3. Errors are Cap'n Proto exceptions whose description begins with "ENAME: " (the status
# names of the C ABI) followed by one sentence. Units stand last in names. Ids are 32 lower-case hex digits.
# Bytes of shards never travel here: they are read from the pool (mapped, or by the data protocol).
@0xd4a1c9f0e85b3a27;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("helios::api");

# Most values (members and elements, at any depth) that the parameters of a method may have; 65536 without it.
annotation maxValues @0xd1f6a0c49bb3e27a (method) :UInt32;

# The first enumerant of an enum is what an absent field means: it promises the least, or says that nothing was said.
# People and JSON see an enumerant's word: its name, unless it has another one here. "" = nothing was said.
# So with a field: its name in JSON.
# The words stay as they are: the Controller's store has them. Numbers may change until the first release.
annotation word @0x84c470eb2e269639 (enumerant, field) :Text;
# An empty, absent or unsaid field is refused.
annotation required @0xd94bbbe64f5ea733 (field, param) :Void;

# Of JSON only. A field of which nothing was said is no member: a text that is NULL in C, an empty list, the default of a number,
# a struct of which nothing was said.
annotation optional @0xc979a99a733a166f (field) :Void;
# A list as an object: the first field of an element, a text, names the member; the value is the other field, or an object of the others.
annotation map @0xf5b3a3e7dbcb8431 (field) :Void;
# A map whose members stand in the struct's own object, beside its fields.
annotation rest @0xf89fbafaf16b7d7a (field) :Void;
# A struct whose members stand in the struct's own object. Such documents are written and never read.
annotation flatten @0xb0a8b6e1d4c2975e (field) :Void;
# A number: its default is null.
annotation nullable @0x9c1e5d0af37b6428 (field) :Void;
# How people see a field: "hex", a UInt32 as text of 8 hexadecimal digits; "json", a text as the JSON that it holds, no member when it
# is empty; "text", a Data as text, in which all bytes beyond ASCII are '?' if they are not UTF-8. Files and the Controller's store
# have the plain value.
annotation shown @0xe7f25b8c6a913d04 (field) :Text;

struct KeyValue { key @0 :Text; value @1 :Text; }

# One option of a daemon as it is in force; origin: "default", "file PATH:LINE", "environment NAME", "flag --NAME".
# Passwords in URLs are masked.
struct OptionValue { name @0 :Text; value @1 :Text; origin @2 :Text; }

# ---- nodes ---------------------------------------------------------------------------------------

struct Device { kind @0 :Text; id @1 :Text; name @2 :Text; memoryBytes @3 :UInt64; numaId @4 :Int32; nicClass @5 :Text; }
# kind: "gpu" or "nic"; id: PCI address; nicClass: words of core/planner/topo.h, "" = not known or a GPU; a slot is a NUMA node that has CPUs.
struct Slot { numaId @0 :Int32; cpus @1 :Text; memoryBytes @2 :UInt64; gpus @3 :List(Device); nics @4 :List(Device); }

struct NodeInfo {
  name @0 :Text;           # serverId
  agentAddress @1 :Text;   # where this Agent serves
  hostId @2 :Text;         # same value = same machine (shared memory is reachable)
  incarnation @3 :Text;    # new for every start of the Agent
  executor @4 :Text;       # "process", "docker", ...
  version @5 :Text;
  slots @6 :List(Slot);
  rankAddress @7 :Text;    # host name or IP that ranks of other nodes can reach (MASTER_ADDR)
  dataAddress @8 :Text;    # host:port where the node's L2 is read and written; "" = none
  migrateAddress @9 :Text; # host:port where the node's L2 takes migrations (ZeroMQ); "" = none
  storeSocket @10 :Text;   # Unix socket that hands out the L2 pool to ranks of this node; "" = no L2
  tiers @11 :List(TierInfo);
  storeEpoch @12 :UInt64;  # grows with every change of what the store holds
  hostAddress @13 :Text;   # rankAddress as an IP address; "" = it has none
  stateDirectory @14 :Text; # identity of the Agent's state directory on its host, which one Agent at a time holds; "" = unknown
  leaf @15 :Text;          # the switch that the node hangs on, and the one above it; "" = not known
  spine @16 :Text;
  health @17 :Health;      # of the last test
  deviceAddresses @18 :Text; # IP addresses of the devices' own network ports, by the devices' numbers, with commas; "" = not known
}

# untested: nothing was said. testing: the first test of an Agent goes on.
enum HealthState { untested @0; passed @1; failed @2; skipped @3; testing @4; }
struct HealthRow {
  name @0 :Text;           # memory, checksum, network, clock, disk, script
  state @1 :HealthState;
  value @2 :Text;          # what was found, for people
  text @3 :Text;           # why it failed or was skipped
}
struct Health {
  timeMs @0 :Int64;        # when the test ended; 0 = there was none
  state @1 :HealthState;
  tookMs @2 :Int32;
  rows @3 :List(HealthRow);
  reason @4 :Text;         # of a test that failed: its first row that did
}

# L1: device memory; L2: host memory of a node; L3: the pool; L4: the archive, which is reached through the pool's host only.
enum Tier { unsaid @0 $word(""); l1 @1 $word("L1"); l2 @2 $word("L2"); l3 @3 $word("L3"); l4 @4 $word("L4"); }

enum Pressure { low @0; normal @1; high @2; }

# One tier of one node (or of the L3 host): usage in bytes, exact at the moment of the answer.
struct TierInfo {
  tier @0 :Tier $required;
  name @1 :Text;           # "emu:0", "cuda:1", "host", "pool", "dir:/archive"
  quotaBytes @2 :UInt64;   # 0 = no limit but the medium's
  usedBytes @3 :UInt64;    # sealed and being written
  writingBytes @4 :UInt64; # the part of usedBytes that is being written
  quarantinedBytes @5 :UInt64;
  shards @6 :UInt64;
  highBytes @7 :UInt64;    # watermarks
  lowBytes @8 :UInt64;
  pressure @9 :Pressure;
  numaId @10 :Int32;       # -1 = several or none
  regions @11 :List(RegionInfo);
  backing @12 :Text;       # "huge pages", "4 KiB pages", "device memory", ...: what was really got
  nicClass @13 :Text;      # L1: of the NIC beside it; words of core/planner/topo.h
  nicDirect @14 :Bool;     # L1: a NIC may reach its memory
  kind @15 :Text;          # "" = shards; "chunks" = HybridPS chunks of ranks, which are outside of any quota of shards
  processes @16 :List(ProcessBytes);  # chunks: who has how much
  keptBytes @17 :UInt64;   # L2: copies that reads have left, which go when room is needed; not in usedBytes
  keptShards @18 :UInt64;  # not in shards
}
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
  troubles @11 :List(Text);  # each is a reason to start nothing here: a device that vanished, a full log disk
  leftOut @12 :UInt32;     # rows for which a heartbeat has no room
  backbone @13 :LineLoad;
}
# Of the interface that is on a network, whoever uses it. bitsPerSecond 0: what it carries is not known. busyPercent -1: not known.
struct LineLoad { interface @0 :Text; bitsPerSecond @1 :UInt64; busyPercent @2 :Float64; }

# Shares and rates are of the time since the reading before. What the machine does not tell is 0.
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
  env @5 :List(KeyValue);  # what differs from rank to rank
  cp @6 :Int32;
}

struct ContainerSpec {
  id @0 :Text;             # JOB.ATTEMPT.INDEX, unique for ever
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
  rankTable @15 :Text;     # what the file that RANK_TABLE_FILE names says first; "" = there is none
  # Which Python the ranks have, one of: directory of a virtual environment; directory or name of a conda
  # environment; path of the interpreter. "" = none.
  venv @16 :Text;
  conda @17 :Text;
  python @18 :Text;
  nics @19 :List(Text);    # RDMA devices of the slot ("mlx5_0"), filled in by the Agent
  replace @20 :ReplaceRule $optional; # of ranks that are lost while the others go on
  epoch @21 :UInt64;       # of the Controller that orders it; 0: none does
}

# wanted: its start was asked for, and no word of it has come. lost: with its node.
enum ContainerState { wanted @0; starting @1; running @2; succeeded @3; failed @4; stopped @5; lost @6; }

# A process that is lost is replaced by another one in its container, `max` times within stableMs of no loss.
# max 0: never, then the container ends with it. spares: processes that are parked in the container for that.
# backoffMs: wait after a process that made no step, doubled each time up to backoffMaxMs; 0 = 1 s and 60 s.
# onFailure: "memory=fail 42=ignore", what follows from a kind of failure or an exit code (core/replace/exits.h).
struct ReplaceRule {
  max @0 :Int32; stableMs @1 :Int64; spares @2 :Int32; backoffMs @3 :Int64; backoffMaxMs @4 :Int64; onFailure @5 :Text;
}

enum RankActivity { unsaid @0 $word(""); joining @1; loading @2; training @3; saving @4; }

# What a rank says by helios.report, and what its node sees of it. Times are as of the report.
struct RankProgress {
  activity @0 :RankActivity;
  step @1 :Int64 = -1;        # the last one that ended; -1 = none yet
  steps @2 :UInt64;           # that ended since its gang came together
  sinceMs @3 :Int64 = -1;     # how long ago that was, or since when it trains; -1 = neither
  medianMs @4 :Float64;       # of its last 63 steps; 0 = none was timed
  loss @5 :Float64;
  tokens @6 :UInt64;          # in all, of this process
  generation @7 :UInt32;      # how often its gang has come together; 0 = it does not tell
  stopped @8 :Bool;           # its process does not run: a stop signal, a debugger
  recovery @9 :RecoveryTimes $optional; # of its last replacement, once that has made a step
  ownMs @10 :Float64;         # median of what it did not wait for others in its last 15 steps; 0 = none was timed
  trouble @11 :Text;          # what it said last that is wrong with it; "" = nothing
  troubles @12 :UInt32;       # how often it said so, with the processes that had its place before
  doneBefore @13 :Int64;      # steps of lower numbers had ended before its gang came together; 0 = none
  noLoss @14 :Bool;           # it told none, or one that is no finite number; loss is 0 then
}
# From a rank's end to the next step of the process in its place. totalSeconds 0 = there is none.
struct RecoveryTimes {
  startSeconds @0 :Float64;   # until that process had the rank's place
  joinSeconds @1 :Float64;    # until the gang had come together
  loadSeconds @2 :Float64;    # until it trained
  stepSeconds @3 :Float64;    # its first step
  totalSeconds @4 :Float64;
}

struct RankStatus {
  rank @0 :Int32; pid @1 :Int32; state @2 :ContainerState; exitCode @3 :Int32; signal @4 :Int32;
  finishedMs @5 :Int64;
  progress @6 :RankProgress $optional;
  replaced @7 :UInt32;     # how often it was, in this container
  lostMs @8 :Int64;        # when it ended before that; 0 = never
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
  warning @9 :Text;        # what is wrong while it goes on: output that could not be kept
  stepsFile @10 :Text;     # on the node: what its ranks say of their steps (os/step_page.h); "" = nothing
  # failed: nobody knows how its ranks ended, for who watched them was killed with them, or its node has it no more. None of its processes
  # is left.
  lost @11 :Bool;
}

enum ImageState { absent @0; pulling @1; here @2; }

interface Agent {
  # Orders of containers have the `epoch` of the Controller that gives them (registerNode); 0: none does. EPERM: it was replaced by a newer
  # one; of a start also: the container was stopped or forgotten before, or a later attempt of its job has begun here. EBUSY: one of
  # another attempt still runs here; an earlier one is stopped. Ask again.
  startContainer @0 (spec :ContainerSpec) -> (status :ContainerStatus);   # idempotent by id
  stopContainer @1 (id :Text, graceMs :Int32, epoch :UInt64) -> ();       # unknown id: ok; at most the container's own grace
  listContainers @2 () -> (containers :List(ContainerStatus));
  # One slice of a rank's output; offset < 0 counts from the end.
  readLog @3 (id :Text, rank :Int32, offset :Int64, maxBytes :UInt32)
          -> (data :Data, offset :Int64, size :Int64, finished :Bool);
  forgetContainer @4 (id :Text, epoch :UInt64) -> ();                     # drop record and logs of an ended one
  info @5 () -> (node :NodeInfo, telemetry :Telemetry);

  # The node's store: L1 of its devices, L2 of its memory. Copies are whole shards under their own id.
  storeInfo @6 () -> (tiers :List(TierInfo), dataAddress :Text, migrateAddress :Text, socketPath :Text);
  # Make a copy here: from `source` into `tier` (L1 or L2). Answered when it is verified and sealed. Idempotent.
  storeCopy @7 (request :CopyRequest) -> (copy :Copy);
  # Send the copy in this node's L2 away: to another node's L2 (migration network) or to L3 (backbone).
  storeSend @8 (request :CopyRequest) -> (copy :Copy);
  # `epoch` of these: of the Controller that orders or asks (registerNode); 0: none does. EPERM: it was replaced by a newer one.
  storeDrop @9 (id :Text, tier :Tier $required, device :Text, epoch :UInt64) -> (dropped :Bool);
  storeList @10 (cursor :UInt64, limit :UInt32, epoch :UInt64) -> (copies :List(Copy), next :UInt64);
  # For readers of other nodes: where copies lie in this node's L2 (offsets into the region served at dataAddress).
  storeLocate @11 (ids :List(Text), epoch :UInt64) -> (extents :List(Extent)) $maxValues(1048576);
  metrics @12 () -> (text :Text);   # Prometheus text format
  # Read a copy here through; device "" = every one of the tier. ENOENT: there is none.
  storeVerify @13 (id :Text, tier :Tier $required, device :Text, epoch :UInt64) -> (ok :Bool, badChunks :List(UInt32));
  # Replace the rank table of a container that was started with one, and what its ranks are told of where they meet
  # (HELIOS_MEETING); "" = it stays. ENOENT: the container is not here. Idempotent.
  putRankTable @14 (id :Text, document :Text, epoch :UInt64, meeting :Text) -> ();
  # The first of `ports` where nobody listens here, and which nobody was told lately. EBUSY: none.
  findPort @15 (ports :List(UInt16)) -> (port :UInt16);
  options @16 () -> (options :List(OptionValue));
  # A reader of this node is about to read that shard of L3: fetch it once for all of them, and keep it in the L2 as long as its rule and
  # the room allow. Such a copy is in no list and no catalogue. ENOSPC, EBUSY, EUNSUPPORTED: the reader fetches it itself.
  storeKeep @17 (request :CopyRequest) -> (copy :Copy);
  # What a process has read of the L2 since it told last; it steers what is kept.
  storeReads @18 (reads :List(ShardReads)) -> ();
  # End the copies of that migrationId, unless others have asked for the same ones; their calls answer ECANCELED.
  storeStop @19 (migrationId :Text, epoch :UInt64) -> (stopped :UInt32);
  # Test the node now, all of it, whatever runs here; at most 5 s.
  testHealth @20 () -> (health :Health);
  # What the kernel's log says of how that process, or the last one in that rank's control group, was killed for want of memory; "" = nothing.
  killEvidence @21 (pid :Int32, sinceMs :Int64, container :Text, rank :Int32) -> (text :Text);
  # Have an image here before a container needs it: where it is not, it is pulled meanwhile. Answered at once; ask again. A pull that nobody
  # asks about for five minutes ends. pinned: of one that is here, the name that means the same bytes on every node.
  prepareImage @22 (image :Text) -> (state :ImageState, pinned :Text, text :Text);   # text: how far the pull is, or why it can't be had
  # Kill the process of one rank: to its container it is as if it had failed. False: another process has its place, or none.
  endRank @23 (id :Text, rank :Int32, pid :Int32, epoch :UInt64) -> (ended :Bool);
  # Copies of that shard which reads have left here.
  storeKept @24 (id :Text) -> (copies :List(Copy));
  # End containers of another Agent of this machine, which is silent and has that NodeInfo.stateDirectory. ended: how many of them ran.
  endStrays @25 (ids :List(Text), stateDirectory :Text, epoch :UInt64) -> (ended :UInt32);
  # Ids of the containers of that Agent that run now.
  listStrays @26 (stateDirectory :Text, epoch :UInt64) -> (ids :List(Text));
}
# bad: it failed its checksum; a kept copy is then read through, and goes if it is bad.
struct ShardReads { id @0 :Text; count @1 :UInt32; bad @2 :Bool; }

# read: the target's side asks for a copy, lowest latency; write: the source's side delivers, highest bandwidth;
# migrate: the shard changes its place, from host to host.
enum Operation { read @0; write @1; migrate @2; }

# Which way bytes went or would go; core/copies/route.h decides it. none: there is no way.
enum RoutePath {
  unsaid @0 $word("");
  none @1;
  localCopy @2 $word("local-copy");
  mapped @3;               # shared memory, read in place
  direct @4;               # RDMA between the memories themselves
  plank @5;                # staged through host memory, overlapped
  tcp @6;                  # the owner takes part
  ucxTagged @7 $word("ucx-tagged");
  zmq @8;
  archiveLoad @9 $word("archive-load");
  archiveStore @10 $word("archive-store");
}

# Why that way; core/copies/route.c has a clause for each.
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

# One copy of a shard in one tier of one place.
struct Copy {
  id @0 :Text;
  tier @1 :Tier $required;
  node @2 :Text;           # serverId; "" = the L3 host
  device @3 :Text;         # "emu:0" for L1, else ""
  numaId @4 :Int32;
  sizeBytes @5 :UInt64;
  crc32 @6 :UInt32 $shown("hex");
  path @7 :RoutePath;      # how it came; unsaid = its holder found it there
  reason @8 :RouteReason;
  transport @9 :Text;      # shm rdma tcp emulated zmq file, as found by test
  seconds @10 :Float64;    # of its transfer
  createdMs @11 :Int64;
  kept @12 :Bool;          # a read has left it, no order: it is in no catalogue, and goes when others need the room
}

struct CopyRequest {
  id @0 :Text;
  sizeBytes @1 :UInt64;
  crc32 @2 :UInt32 $shown("hex");
  tier @3 :Tier;           # of the target: L1 L2 (storeCopy), L2 L3 (storeSend)
  device @4 :Text;         # of the target; "" = the first, or the one nearest numaId
  numaId @5 :Int32;        # wanted; -1 = any
  sourceTier @6 :Tier;     # unsaid = L3
  sourceNode @7 :Text;     # "" = L3
  sourceHostId @8 :Text;
  sourceAddress @9 :Text;      # RPC of the source: L3 daemon or Agent
  sourceDataAddress @10 :Text; # data address of the source
  targetAddress @11 :Text;     # storeSend: migrateAddress of the Agent, or dataAddress of L3
  operation @12 :Operation;
  timeoutMs @13 :UInt32;
  sourceDevice @14 :Text;      # L1 of the Agent that is asked
  sourceSocket @15 :Text;      # Unix socket of the source, for a target on its host
  targetHostId @16 :Text;      # storeSend
  targetSocket @17 :Text;      # storeSend: Unix socket of the target
  targetDataAddress @18 :Text; # storeSend: data address of the target, when the migration network is down
  migrationId @19 :Text;       # one for all attempts of an order, so that storeStop ends them and a further storeSend
                               # sends only what is missing; "" = a random one
  epoch @20 :UInt64;           # of the Controller that orders it; 0: none does
  bytesPerS @21 :UInt64;       # the copy takes no more of its way; 0 = what it can get
}

# ---- shards --------------------------------------------------------------------------------------

# damaged: its record is.
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
  copies @13 :List(Copy);  # known copies, L3 and L4 included
  layout @14 :Text;        # its tensors, as in core/model/layout.h: NAME TAB DTYPE TAB EXTENTS LF, sorted; only towards the Controller,
                           # and where getShard is asked for it
  renamed @15 :Bool;       # of requestShards: only the tensors in `shown` belong to the position, under those names
  shown @16 :List(ShownTensor);
  ep @17 :Int32;           # of experts: which of them; `tp` is then the rank within etp
  tensorCrcs @18 :Text;    # CRC-32 of every tensor, 8 hexadecimal digits each, in the order of `layout`; only towards the
                           # Controller; "" = the client is older
  derived @19 :Bool;       # of a Cut: it is no part of what the version's ranks have saved
  derivedSplit @20 :Text;  # "TP2 x EP4": what the Cut is for; "" = not derived
  life @21 :Text;          # of listShards: as ShardPlacement.state; "" = it is not placed
  heat @22 :Float64;       # likewise
  gone @23 :Bool;          # of getShard: lost, and no daemon is away that could have it, so a reader has nothing to wait for
}

# ---- placement: the use of shards, and where that brings them (core/placement) ----
# In words: `reason` and `numbers` (what `value` and `limit` are) come from core/placement/lifecycle.h.

struct ShardReader { node @0 :Text; accesses @1 :Float64; }   # within the window, the most frequent first
struct ShardChange {
  timeMs @0 :Int64;
  from @1 :Text; to @2 :Text;   # states
  reason @3 :Text;
  node @4 :Text;           # where the shard goes, or is; "" = the L3 host
  value @5 :Float64; limit @6 :Float64; numbers @7 :Text;
}
# What the last pass has decided.
struct ShardDecision {
  timeMs @0 :Int64;
  reason @1 :Text; value @2 :Float64; limit @3 :Float64; numbers @4 :Text;
  tier @5 :Tier; node @6 :Text;   # where to
  gainSeconds @7 :Float64; costSeconds @8 :Float64;   # of a move that was weighed, else 0
  carriedOut @9 :Bool;     # false: placement.policy only observes
  backbonePercent @10 :Float64;   # how busy the backbone was, which has raised `limit`; -1: not known, or not asked
}
struct ShardPlacement {
  id @0 :Text;
  state @1 :Text; sinceMs @2 :Int64;
  tier @3 :Tier; node @4 :Text;           # of the copy that counts as its place
  goalTier @5 :Tier; goalNode @6 :Text;   # while it moves: where to; else unsaid
  pinned @7 :Bool; pinnedVersion @8 :Bool;
  heat @9 :Float64; stability @10 :Float64; fluidity @11 :Float64;
  accesses @12 :UInt32; windowMs @13 :Int64;   # N, and of which window
  lastAccessMs @14 :Int64 = -1 $nullable;      # null: no access is known
  moves @15 :UInt32;
  readers @16 :List(ShardReader);
  changes @17 :List(ShardChange);              # the newest first
  decision @18 :ShardDecision;                 # reason "": none
}
# A move of a shard (core/migration); `phase` is a word of that.
struct ShardMove {
  id @0 :Text; shard @1 :Text;
  phase @2 :Text;
  fromTier @3 :Tier; fromNode @4 :Text;
  tier @5 :Tier; node @6 :Text;           # where to
  keepSource @7 :Bool;     # the copy that it came from stays
  reason @8 :Text; value @9 :Float64; limit @10 :Float64; numbers @11 :Text;
  gainSeconds @12 :Float64; costSeconds @13 :Float64;
  seconds @14 :Float64;    # that it has taken so far, or took
  priority @15 :UInt32;
  sizeBytes @16 :UInt64;
  beganMs @17 :Int64;
  error @18 :Text;         # why it was undone
}

# Where a shard lies in the pool: what a remote reader needs for a one-sided read.
struct Extent {
  id @0 :Text;
  offset @1 :UInt64;       # from the start of the pool
  sizeBytes @2 :UInt64;
  crc32 @3 :UInt32 $shown("hex");
  generation @4 :UInt32;
  chunkCrcs @5 :List(UInt32) $shown("hex");  # one per started MiB
}

# none: there is no archive; writeBehind: visible versions are archived by the Controller's sweep.
enum ArchiveMode { none @0 $word(""); manual @1; writeBehind @2 $word("write-behind"); }

struct PoolInfo {
  uuid @0 :Text;
  incarnation @1 :Text;
  hostId @2 :Text;
  socketPath @3 :Text;     # Unix socket that hands out the read-only descriptor
  capacityBytes @4 :UInt64;
  usedBytes @5 :UInt64;
  quarantinedBytes @6 :UInt64;
  shards @7 :UInt64;
  dataAddress @8 :Text;    # host:port of the data protocol
  poolPath @9 :Text;
  freeBytes @10 :UInt64;   # largest single shard that fits now is at most this
  tiers @11 :List(TierInfo);   # L3 and, where there is an archive, L4
  archiveMode @12 :ArchiveMode;
  cluster @13 :Text;       # whose pool it is; "" = unclaimed
  revision @14 :UInt64;    # newest of that cluster's catalogue that the pool has heard of
  manifests @15 :UInt64;   # of versions, beside the shards
  backbone @16 :LineLoad;  # of the L3 host
}

# A shard that was moved out of the archive's shards and is kept for archive.trash_keep.
struct Trashed {
  id @0 :Text;
  sizeBytes @1 :UInt64;
  trashedMs @2 :Int64;
  place @3 :Text;          # below the archive's URL
}

# A stored shard or manifest, as its own bytes say.
struct Found {
  id @0 :Text;
  tier @1 :Tier;           # L3, L4; unsaid = in neither
  sizeBytes @2 :UInt64;
  crc32 @3 :UInt32 $shown("hex");
  error @4 :Text;          # why it can't be read; then nothing below is said
  manifest @5 :Text;       # JSON; "" = it is none
  model @6 :Text; version @7 :Int64; pp @8 :Int32; tp @9 :Int32; part @10 :Text;   # by the header of a shard in L3
  tensors @11 :UInt32;
  layout @12 :Text;
  ep @13 :Int32;
}

# How a version is split among its ranks. In a request 0 is what the version has, all 0: nothing was said.
struct Split {
  tp @0 :Int32; pp @1 :Int32;
  virtualStages @2 :Int32;      # chunks per stage, 1 = none; 0 = what the version has with as many stages
  firstStageLayers @3 :Int32;   # 0 = as the version has it with as many stages, else even
  lastStageLayers @4 :Int32;
  ep @5 :Int32 $optional;       # ranks that share the experts of a layer out
  etp @6 :Int32 $optional;      # ranks that share an expert, a divisor of tp; in a version 0 = tp, and ep 0 = 1
}

# A tensor of a shard, and what a rank of another split calls it.
struct ShownTensor { stored @0 :Text; shown @1 :Text; }

# Rows that pad the vocabulary: the last row again, or zeros.
enum VocabPadding { repeat @0; zero @1; }
# Megatron-core's layer names: its local ones, or those of Transformer Engine.
enum LayerNaming { local @0; te @1; }

struct ImportRequest {
  importId @0 :Text;
  dir @1 :Text;
  name @2 :Text;
  version @3 :Int64;
  tp @4 :Int32; pp @5 :Int32;   # what it is stored at; 0 = 1
  vocabDivisor @6 :Int32;       # 0 = 128
  pad @7 :VocabPadding;
  naming @8 :LayerNaming;
  firstStageLayers @9 :Int32;   # 0 = even
  lastStageLayers @10 :Int32;
  virtualStages @11 :Int32;     # chunks per stage, 0 or 1 = none
  base @12 :Text;               # of a LoRA adapter: the model that it was trained for, whose split it gets
  baseConfig @13 :Text;         # of that model; the Controller fills it in
  ep @14 :Int32;                # 0 = 1
  etp @15 :Int32;               # 0 = tp
  iteration @16 :Text;          # of a Megatron checkpoint: a number or "release"; "" = the newest
  optimizer @17 :Bool;          # of a Megatron checkpoint: its optimizer's state too
  unsliced @18 :Bool;           # whole tensors, whatever the family
  waitMs @19 :UInt64;           # how long it may wait for others to end before it begins; 0: it fails with EBUSY
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
  waitsFor @10 :List(Text);     # running, but not begun: the imports before it; empty = begun
}

# An import that runs; its model is not listed yet.
struct ImportSummary {
  importId @0 :Text;
  name @1 :Text;
  dir @2 :Text;
  tp @3 :Int32; pp @4 :Int32;
  doneBytes @5 :UInt64;
  totalBytes @6 :UInt64;        # 0 = not known yet
  queued @7 :Bool;              # it waits for others to end
}

# Asks for derived shards: those of a version under another tensor parallel size, made from its own.
struct CutRequest {
  importId @0 :Text;            # as of an import: progress and cancel are asked with it
  model @1 :Text; version @2 :Int64;
  config @3 :Text;              # JSON: ModelConfig, of the version's own split
  split @4 :Split;              # to cut for; all sizes are said
  shards @5 :List(Shard);       # of the version; only what can be cut
}

# Whether the copy in the pool was good, has been replaced, or can't be.
enum HealState { lost @0; good @1; healed @2; }

# own: takes what is the cluster's own or empty; adopt: also what holds shards and is unclaimed; take: whatever it is.
enum ClaimMode { own @0; adopt @1; take @2; }
# unclaimed: holds shards of nobody known; newer: has heard of a newer catalogue; other: another cluster's.
enum ClaimResult { other @0; newer @1; unclaimed @2; claimed @3; }   # from bad to good

interface L3 {
  poolInfo @0 () -> (pool :PoolInfo);
  # Returns at once; idempotent by importId. `cluster`: as of `free`, but may be missing.
  importModel @1 (request :ImportRequest, cluster :Text) -> ();
  importProgress @2 (importId :Text) -> (progress :ImportProgress);
  cancelImport @3 (importId :Text) -> ();
  # ENOENT names the missing one. migrationId: of an order, for `stop`; "": none. givesWay: of a load that nobody waits
  # for: nothing leaves the pool for it (ENOSPC), and it ends when others want the archive (EBUSY).
  locate @4 (ids :List(Text), migrationId :Text, givesWay :Bool) -> (extents :List(Extent)) $maxValues(1048576);
  inventory @5 (cursor :UInt64, limit :UInt32) -> (extents :List(Extent), next :UInt64);  # next 0 = end
  # Unknown ids are skipped. `cluster`: who calls; EPERM unless it is the pool's, once the pool is claimed.
  free @6 (ids :List(Text), cluster :Text) -> (freed :UInt32) $maxValues(1048576);
  # tier: L3 or unsaid, L4; a copy in the archive is good or bad as a whole. crc32: of all of a good copy in the archive.
  verify @7 (id :Text, tier :Tier) -> (ok :Bool, badChunks :List(UInt32), crc32 :UInt32, crc32Known :Bool);

  # L4. `locate` loads what is only archived into memory first.
  archive @8 (ids :List(Text), migrationId :Text)
          -> (archived :UInt32, bytes :UInt64) $maxValues(1048576);  # already there: fine; answered when durable
  # From memory; only what is archived and not pinned. `cluster`: as of `free`.
  evict @9 (ids :List(Text), cluster :Text) -> (evicted :UInt32, bytes :UInt64) $maxValues(1048576);
  # For ever, or into the trash. `cluster`: as of `free`, of the pool and of the archive.
  dropArchived @10 (ids :List(Text), cluster :Text, trash :Bool) -> (dropped :UInt32) $maxValues(1048576);
  listArchived @11 (cursor :UInt64, limit :UInt32) -> (extents :List(Extent), next :UInt64);
  # The copy in the pool is suspected: check it, and if it is bad replace it from the archive or from `sources`.
  heal @12 (id :Text, sources :List(CopyRequest)) -> (state :HealState, source :Text);
  metrics @13 () -> (text :Text);
  touch @14 (ids :List(Text)) -> () $maxValues(1048576);   # were read through the mapping: the last to be evicted
  options @15 () -> (options :List(OptionValue));

  # Binds pool and archive to one cluster, both or none. `revision`: of its catalogue, recorded. `seen`: the newest
  # of its own that the caller knows of; more than that recorded here means that the caller's catalogue is old.
  # Unless the state is `claimed` nothing was changed. The rest is how it was found, and of a success how it is now.
  claim @16 (cluster :Text, revision :UInt64, seen :UInt64, mode :ClaimMode)
        -> (state :ClaimResult, cluster :Text, revision :UInt64, shards :UInt64,
            archiveCluster :Text, archiveRevision :UInt64, archived :UInt64, trashed :UInt64,
            archiveDamaged :Bool);      # what the archive says of its owner can't be read
  listTrash @17 (cursor :UInt64, limit :UInt32) -> (trashed :List(Trashed), next :UInt64);
  # Back into the archive. Ids that are not in the trash are skipped. `cluster`: as of `free`.
  untrash @18 (ids :List(Text), cluster :Text) -> (restored :UInt32) $maxValues(1048576);

  # What the catalogue knows of a version (core/catalog/manifest.h), kept in the pool beside its shards; there already: fine.
  # `inventory`, `listArchived`, `archive`, `free` and the like treat it like a shard, counts of shards leave it out.
  putManifest @19 (manifest :Text, cluster :Text) -> ();    # `cluster`: as of `free`
  # Read from what is stored; the answer has the order of the ids.
  describe @20 (ids :List(Text)) -> (found :List(Found));
  # Which of these exist, sealed in the pool or in the archive; nothing is loaded or read. Unknown ids are left
  # out. crc32Known: false for an archived copy whose checksum has not been read yet.
  look @21 (ids :List(Text)) -> (shards :List(FoundShard)) $maxValues(1048576);
  # Returns at once; idempotent by importId. Followed with importProgress, ended with cancelImport. The ids of the new
  # shards mark them as derived: they are the first to go when room is needed. `cluster`: as of `importModel`.
  cutShards @22 (request :CutRequest, cluster :Text) -> () $maxValues(1048576);
  # End what `locate` loads and `archive` stores under that migrationId, unless others wait for the same; their calls
  # answer ECANCELED.
  stop @23 (migrationId :Text) -> (stopped :UInt32);
  # Which shards leave a full pool first, in this order; all others follow by their last use. Of what may leave at all
  # nothing changes. It stands until the next one, ttlMs at most. `cluster`: as of `free`.
  orderEviction @24 (ids :List(Text), cluster :Text, ttlMs :UInt32) -> () $maxValues(1048576);
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
  lostShards @13 :UInt32;  # of a visible version: lost, or with a damaged record; `error` says what it lacks
  split @14 :Split;        # its own
  cuts @15 :List(Cut);     # other tensor parallel sizes that it was cut for
  proved @16 :Bool;        # at its import or last commit: every element of each logical tensor is held, replicas are equal
  unproved @17 :Text;      # else what is not, and why; "" = not visible, or by an earlier release
  # Of getModel only: versions.durability, how many shards are in too few failure domains for it, and of the first one where it is.
  durability @18 :Text;
  lackingShards @19 :UInt32;
  lacking @20 :Text;
}

# Derived shards of a version; they can be given up at any time, and are cut anew when they are asked for.
struct Cut {
  split @0 :Split;         # one stage: other stages are views of it
  shards @1 :UInt32;
  bytes @2 :UInt64;
  leftOut @3 :Text;        # of the version, and why; "" = nothing
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
  crcFailures @4 :UInt32;  # bad pieces seen, healed or not
  retries @5 :UInt32;
  lost @6 :Bool;           # stayed bad after every retry
  ageMs @7 :UInt32;        # of the last of them, when the report was sent
  tier @8 :Tier;           # where the process found it: L2 of its node, or L3; unsaid = of an older client
}

# What one process has told of one shard at a time. Times are the Controller's, of recordAccesses only.
struct ShardAccess {
  id @0 :Text; node @1 :Text;   # "" = of no node
  sizeBytes @2 :UInt64;         # 0 = the Controller does not know the shard
  atMs @3 :Int64;               # of the last of them
  spanMs @4 :UInt32;            # they lie within so much before that
  count @5 :UInt32;
  write @6 :Bool;               # it was committed
}

# A network; inside: within a host, none. The numbers are those of base/plane.h.
enum Plane { inside @0; backbone @1; migration @2; management @3; }

# What a rank has transferred since its last report, by plane and path.
struct TransferReport {
  plane @0 :Plane;
  operation @1 :Operation;
  path @2 :RoutePath $required;
  reason @3 :RouteReason $required;
  failed @4 :Bool;
  sent @5 :Bool;           # direction of the bytes, seen from the rank
  ops @6 :UInt64;
  bytes @7 :UInt64;
  latency @8 :List(UInt64);  # of those that were timed: entry i took up to 2^i us / 4
  latencyNs @9 :UInt64;    # their sum
}

# What a rank has refused, healed or given up since its last report.
struct FaultReport {
  cause @0 :Text;
  path @1 :Text;
  count @2 :UInt64;
}

# ---- jobs ----------------------------------------------------------------------------------------

struct PlanRank { rank @0 :Int32; pp @1 :Int32; tp @2 :Int32; dp @3 :Int32; localRank @4 :Int32; gpu @5 :Text; cp @6 :Int32 $optional; knownAs @7 :Int32 = -1 $optional; }   # knownAs: the number with which its container was started; -1 = rank
# address, gpus: of a spare slot, where the ranks of a lost container go on (core/planner/spares.h); "" = it is none.
# joining, leaves: of a gang that changes its size (core/planner/resize.h): ranks that will be; it has no ranks any more.
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
  never @8 :Bool;          # infeasible also when every slot is free: submitJob refuses it
}

struct DefragMove { job @0 :Text; containers @1 :Int32; from @2 :List(Text); to @3 :List(Text); }   # nodes
# moves: the fewest gangs, and of those the smallest; none: no set of up to three makes room, of those that were looked at. nodes: where
# the job would run then. allTried: every such set was looked at.
struct Defrag { moves @0 :List(DefragMove); nodes @1 :List(Text); allTried @2 :Bool; }

# What the ranks are started with. Names of variables only: values may be secrets.
struct JobLaunch {
  file @0 :Text;           # the job file, absolute on the submitter's machine; "" = standard input
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
  endsHung @12 :Bool; endsSlow @13 :Bool;  # the process of a rank that hangs, or is slow, is ended
  replicas @14 :Int32;     # ranks that have the same parameters
  backoffMs @15 :Int64; backoffMaxMs @16 :Int64;  # wait between two attempts, or processes, that make no new step
  stableAfterMs @17 :Int64;  # so long without a failure, and what was used of restarts is 0 again
  onFailure @18 :List(KeyValue);  # kind or exit code: fail, count or ignore
  spareSlots @19 :Int32;   # slots on other servers, for containers that are lost
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
  other @4 :Text;          # the job that the reason speaks of; "" = none
  remedy @5 :Text;         # what would make it run
  startMs @6 :Int64;       # estimate; 0 = unknown
  queue @7 :Text;
  priority @8 :Int32;
  place @9 :Int32;         # in the line of pending jobs, from 1; 0 = it does not wait
  pending @10 :Int32;      # jobs in the line
  slots @11 :Int32;        # that it needs
  counts @12 :List(SlotCount);   # of the cluster
}
struct QueueInfo {
  name @0 :Text;
  weight @1 :Int32;
  quota @2 :Int32;         # slots; 0 = none
  preempt @3 :Bool;
  slots @4 :Int32;         # held now
  running @5 :Int32; pending @6 :Int32;   # jobs
  used @7 :Float64;        # slots that count from the past: the share is (slots + used) / weight
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
  nodeLosses @16 :Int32;   # attempts that ended with a lost node; they use no restarts
  cause @17 :Text;         # why this attempt was begun; "" = it is the first
  launch @18 :JobLaunch;
  warning @19 :Text;       # of its containers or its record; "" = none
  failures @20 :List(JobFailure);  # of attempts, the newest last, without their logs
  ledger @21 :JobLedger;
  queue @22 :Text; priority @23 :Int32;
  image @24 :Text;         # what dockerImage was pinned to: REPOSITORY@sha256:..., or an id; "" = not yet, or the job has none
  nextAttemptMs @25 :Int64;      # a job that backs off is placed again then; 0 = it does not
  lastFailure @26 :FailureKind;  # of the last attempt that failed
  # Of a job with a range of data parallel sizes: its replicas now, the range, and the sizes that this attempt had before.
  replicas @27 :Int32 $optional; replicasMin @28 :Int32 $optional; replicasMax @29 :Int32 $optional;
  resizes @30 :Int32 $optional;
}

# unsaid: there is none. lost: with its node, or with what watched it there. mistake: an exit code that another start gives again (2, 64 to 78,
# 126, 127). stall: the Controller had it ended, for it hung or was slow. save: it exited while it wrote a version.
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
  timeMs @7 :Int64;        # of its end, by its node's clock set right by what the Controller knows of that
  message @8 :Text;
  evidence @9 :Text;       # of the kernel's log, that memory ran out; "" = none
  laterRanks @10 :Int32;   # that failed after it in this attempt
  log @11 :Text;           # its last lines, at most 200 and 64 KiB
  logMissing @12 :Text;    # why there are none
}

# Where the wall time of a job went. The parts sum to wallMs, whatever clocks were set meanwhile.
struct JobLedger {
  wallMs @0 :Int64;
  queueMs @1 :Int64;       # waiting for slots
  placeMs @2 :Int64;       # from the plan until all containers were taken by their nodes
  pullMs @3 :Int64;        # waiting for shards that are brought ahead
  startMs @4 :Int64;       # until the first step's report
  stepMs @5 :Int64;        # of steps that were done for the first time
  saveMs @6 :Int64;        # that steps waited for saves
  stallMs @7 :Int64;       # steps that took more than twice the usual time
  lostMs @8 :Int64;        # from the last step before a failure until all of the attempt had ended
  replayMs @9 :Int64;      # steps that had been done before the failure
  steps @10 :Int64; replayed @11 :Int64;
  tokens @12 :UInt64;
  goodput @13 :Float64;    # stepMs / wallMs
  reported @14 :Bool;      # ranks report steps; else all of the time in which they run, and do not fail, is stepMs
  imageMs @15 :Int64;      # waiting for nodes that pull the image
}

# exact: names, shapes and dtypes; anyDtype: names and shapes; unchecked: anything goes.
enum LayoutCheck { exact @0; anyDtype @1 $word("any-dtype"); unchecked @2; }

interface Controller {
  # Agents
  # epoch: grows with each start of a Controller of the cluster; what an older one orders is refused from then on.
  # EEXIST: another Agent has the name. So it is with `refused`, and of its containers it ends `strays`, which no job wants any more.
  # lostMs: after so long a silence jobs may go on without the node; it starts nothing more until it has been heard. 0: not said.
  # endsStrays: the Agent reads `refused` and `strays`; one that does not say so gets EEXIST alone.
  registerNode @0 (node :NodeInfo, containers :List(ContainerStatus), endsStrays :Bool)
               -> (heartbeatMs :Int32, cluster :Text, epoch :UInt64, refused :Text, strays :List(Text), lostMs :Int64) $maxValues(262144);
  # known = false: the Controller has forgotten this incarnation, register again.
  heartbeat @1 (name :Text, incarnation :Text, telemetry :Telemetry, containers :List(ContainerStatus),
                tiers :List(TierInfo), storeEpoch :UInt64,
                health :Health)   # timeMs 0 = nothing new: it is told once after each test
            -> (known :Bool,
                shardsLeft :UInt64) $maxValues(262144);   # another number than before: shards have left the catalogue

  # Models
  importModel @2 (request :ImportRequest) -> (importId :Text, version :Int64);
  importProgress @3 (importId :Text) -> (progress :ImportProgress);
  listModels @4 () -> (models :List(Model), imports :List(ImportSummary));
  getModel @5 (name :Text) -> (model :Model);
  # version -1 = all. EBUSY when a job that is not over or an open version needs it, unless `force`.
  removeModel @6 (name :Text, version :Int64, force :Bool) -> (shards :UInt32, bytes :UInt64);

  # Ranks and tools. version -1 = newest visible one of which nothing is lost.
  # The position (pp, tp, ep) of `split`; nothing said: of the split that the version was saved with. Shards are cut for
  # one tp, ep and etp; another number of stages changes only which shards a position has and how their tensors are called.
  requestShards @7 (model :Text, version :Int64, pp :Int32, tp :Int32, split :Split, ep :Int32) -> (shards :List(Shard), version :Int64, meta :Text, config :Text, l3Address :Text,
      skipped :Text,   # visible versions newer than that, and what each lacks
      split :Split,    # of the version, or as it was asked for
      # The version is being cut for that tensor parallel size: there are no shards yet, ask again. The call waits a
      # while before it says so.
      cutting :Bool, doneBytes :UInt64, totalBytes :UInt64,
      leftOut :Text,   # what the version has and this split can't be given, and why; "" = nothing
      queued :Bool);   # `cutting` has not begun, for L3 runs as many others as it can: the bytes are those of the others
  listShards @8 (model :Text, version :Int64, cursor :Text, limit :UInt32) -> (shards :List(Shard), next :Text);
  # A process numbers its reports from 1 under a random incarnation; a number is applied once, so that a report may be
  # repeated until it is answered. sequence 0: of an older client, and steers nothing.
  reportAccess @9 (node :Text, job :Text, rank :Int32, reports :List(AccessReport), transfers :List(TransferReport), faults :List(FaultReport),
                   incarnation :UInt64, sequence :UInt64) -> () $maxValues(262144);

  # A new version becomes visible when all `world` ranks have committed. A rank joins the oldest open version
  # of (model, job, attempt, generation, step) that it has not begun yet, else it makes one. `token` is random for every
  # save of a rank: a message that is repeated with it gets the same number.
  # check: how much of the model's layout the parameters must keep. split: of the job that saves, the same on every
  # rank; nothing said: the one that the model was imported with.
  # generation: of the gang, which counts how often it has come together; saves of two generations are two versions,
  # and what an earlier one left unfinished is dropped. 0: the gang never comes together again.
  # create: a model that does not exist is made with this split, and goes again unless a version becomes visible.
  # config: its Hugging Face config.json, "" = none; of a model that exists it has to be that one.
  # container: HELIOS_CONTAINER of the rank, here and in commitPart; -1: nothing is said. ECONFLICT: its ranks go on in another one.
  beginVersion @10 (model :Text, job :Text, attempt :Int32, step :Int64, world :Int32, rank :Int32, token :Text, check :LayoutCheck,
                   split :Split, create :Split, config :Text, generation :UInt32, container :Int32 = -1) -> (version :Int64, state :VersionState);
  # May be repeated with the same shards. ECANCELED: another rank has given the version up.
  # securing: with this rank all have committed, and copies are on their way into as many failure domains as
  # versions.durability asks for. Not said to a rank that does not wait (`waits`): it is answered when they are there. Ask again.
  commitPart @11 (model :Text, version :Int64, rank :Int32, shards :List(Shard), meta :Text, waits :Bool, container :Int32 = -1)
             -> (visible :Bool, committed :Int32, securing :Bool, doneBytes :UInt64, totalBytes :UInt64) $maxValues(262144);

  # Jobs
  # Both check the same. A relative or missing workdir of the job is meant from `cwd`, where the user submits it.
  # `exported` replaces variables of the job file, `inherited` gives way to them. `file` is only shown.
  # defrag: which running gangs would have to begin again elsewhere, so that it fits; nothing is moved.
  planJob @12 (yaml :Text, source :Text, cwd :Text, exported :List(KeyValue), inherited :List(KeyValue), file :Text, defrag :Bool)
          -> (plan :Plan, launch :JobLaunch, defrag :Defrag);
  submitJob @13 (yaml :Text, source :Text, idempotencyKey :Text, cwd :Text, exported :List(KeyValue),
                 inherited :List(KeyValue), file :Text) -> (id :Text);
  listJobs @14 () -> (jobs :List(Job));            # without plan, events, yaml
  # `id` of a job may be its name. Of several jobs of a name the one that is not over is meant, or else the
  # newest; ECONFLICT names the ids when several are not over.
  getJob @15 (id :Text) -> (job :Job);
  cancelJob @16 (id :Text) -> (state :JobState, id :Text);
  # A slice of what a rank wrote in one attempt; offset < 0 counts from the end. rank -1: the one that failed
  # first, else 0. attempt 0: the last one that was placed. What the job was when it was asked comes with it.
  readLog @17 (id :Text, rank :Int32, offset :Int64, maxBytes :UInt32, attempt :Int32)
          -> (data :Data, offset :Int64, size :Int64, finished :Bool, rank :Int32, attempt :Int32,
              lastAttempt :Int32,       # the newest; it may still wait for slots
              failedRank :Int32 = -1,   # which failed first in this attempt, once that is over
              job :Text, jobState :JobState, jobReason :Text);

  # Cluster
  listNodes @18 () -> (nodes :List(NodeState));
  clusterInfo @19 () -> (info :ClusterInfo);

  # Copies. `node` "" and tier L3 or L4 mean the L3 host. Answered when the copy is there. `tensors`: what the catalogue
  # knows of them too, `layout` and `tensorCrcs`.
  getShard @20 (id :Text, tensors :Bool) -> (shard :Shard, routes :List(Route));
  copyShard @21 (id :Text, node :Text, tier :Tier $required, device :Text, operation :Operation) -> (copy :Copy);
  dropCopy @22 (id :Text, node :Text, tier :Tier $required, device :Text) -> (dropped :Bool);
  metrics @23 () -> (text :Text);
  # A reader found a copy bad after every retry: have it checked and replaced.
  reportBadCopy @24 (id :Text, node :Text, tier :Tier $required) -> (state :HealState, source :Text);
  # Which rank has which device, JSON as collective libraries read it; format v1, v2, 1.2, "" = the job's.
  rankTable @25 (id :Text, format :Text) -> (document :Text);
  # By import id, or by the name of a model that is being imported: it never becomes visible, and its shards go.
  cancelImport @26 (id :Text) -> (importId :Text);
  options @27 () -> (options :List(OptionValue));   # the Controller's own
  # A rank can't complete its part: the version fails, the others hear why. ECONFLICT: it is visible.
  # ids: shards that the rank has put and not committed; they are freed too.
  abandonVersion @28 (model :Text, version :Int64, rank :Int32, reason :Text, ids :List(Text)) -> () $maxValues(262144);
  # The state was lost: versions come back from the manifests in pool and archive, then both are claimed. With shards
  # that no manifest names nothing is claimed, unless `discard`: that restores nothing, claims both, and what the catalogue
  # does not know goes (archive: into its trash). dryRun: changes nothing. ECONFLICT: the claim is fine. May be repeated.
  recover @29 (dryRun :Bool, discard :Bool) -> (recovery :Recovery);
  # An option that may change while the Controller runs (docs/placement.md). It holds until the Controller's end. EINVAL names what
  # is allowed.
  # note: why it has no effect as things are; "" = it has.
  setOption @30 (name :Text, value :Text) -> (option :OptionValue, note :Text);
  # Placement. moveShard is answered when the move has ended. ECONFLICT: the shard is pinned, or it moves; ECANCELED: the move was
  # cancelled. cancelMove: ECONFLICT when the new place is in force already.
  shardPlacement @31 (id :Text) -> (placement :ShardPlacement);
  # bytesPerS: what it may take of its way, but for the archive's; 0 = all it can get.
  moveShard @32 (id :Text, node :Text, tier :Tier $required, bytesPerS :UInt64) -> (move :ShardMove);
  # In flight, then those that have ended lately, the newest first. rest: why moves of the policy rest; "" = they don't.
  # backbonePercent: how busy the backbone is, -1: not known; thresholdAccesses: policy.migrate_base, raised by it.
  listMoves @33 () -> (moves :List(ShardMove), rest :Text, backbonePercent :Float64, thresholdAccesses :Float64);
  cancelMove @34 (id :Text) -> (move :ShardMove); # of the move, or of its shard
  # A pinned shard is not moved away by the policy or by moveShard. id "": all of the version.
  pin @35 (id :Text, model :Text, version :Int64, pinned :Bool) -> (changed :Bool);
  # Accesses of shards as their reports come, at most `limit`, from `next` of the answer before on. recording 0: from now on. They are
  # kept while somebody asks, and a minute longer. ENOENT: that recording is over, or of another life of the Controller.
  recordAccesses @36 (recording :UInt64, cursor :UInt64, limit :UInt32)
                 -> (recording :UInt64, next :UInt64, accesses :List(ShardAccess), nowMs :Int64,
                     lost :UInt64);   # entries since `cursor` that were overwritten
  # Those of the shards that the catalogue does not have.
  goneShards @37 (ids :List(Text)) -> (gone :List(Text)) $maxValues(1048576);
  # Nothing new is placed on the node, and what runs there stays; or that ends. ENOENT: no such node;
  # EUNSUPPORTED: Kubernetes places the jobs.
  drainNode @38 (name :Text, drained :Bool, reason :Text) -> (changed :Bool);
  # Have the node test itself now; what it says decides whether it gets containers.
  testNode @39 (node :Text) -> (health :Health);
  # attempt 0: the last one that failed. ENOENT: none did.
  firstFailure @40 (id :Text, attempt :Int32) -> (failure :JobFailure);
  # The line of pending jobs, in its order, and the queues.
  explainJob @41 (id :Text) -> (explanation :JobExplanation);
  listQueue @42 () -> (queues :List(QueueInfo), jobs :List(QueuedJob));
  # All these nodes or none: gangs whose time limit would meet the reservation don't start there; what runs there stays. It begins inMs
  # from now and lasts forMs, 0 = what was reserved of them is not any more. A node has one at a time, another one takes its place.
  # untilMs 0: there is none.
  reserveNodes @43 (names :List(Text), inMs :Int64, forMs :Int64, reason :Text) -> (fromMs :Int64, untilMs :Int64);
  # The place that a process has in its gang now, where the job may change its size: asked each time the gang comes together, and by
  # rank 0 when all have saved. number: counts the sizes of the attempt from 0; where it is another one than the gang's, the ranks
  # are to leave and to come together again. waits: why the process has no place yet, ask again; "" = env is what differs with the
  # size. ENOENT: it is none of the gang any more.
  joinGang @44 (job :Text, attempt :Int32, container :Int32, localRank :Int32) -> (number :Int32, waits :Text, env :List(KeyValue));
}

struct Recovery {
  claim @0 :ClaimState;    # now
  why @1 :Text;            # of a claim that is refused
  cluster @2 :Text;        # id, now; dryRun: as it would be
  versions @3 :List(RecoveredVersion);   # of the manifests that the catalogue does not know
  left @4 :List(LeftShards);             # what no version holds
  known @5 :UInt32;        # versions with a manifest that the catalogue has
  restored @6 :UInt32;     # versions; dryRun: that would be
  restoredShards @7 :UInt64;
  untrashed @8 :UInt64;    # shards that came back from the archive's trash
}
enum RecoveryState { skipped @0; restored @1; }
struct RecoveredVersion {
  model @0 :Text; version @1 :Int64; step @2 :Int64; visibleMs @3 :Int64;
  shards @4 :UInt64; bytes @5 :UInt64;
  state @6 :RecoveryState;
  reason @7 :Text;         # of one that is skipped
}
struct LeftShards {
  model @0 :Text; version @1 :Int64;     # by their own headers; "" = not read
  shards @2 :UInt64; bytes @3 :UInt64;
  tier @4 :Tier;           # L3, L4
  reason @5 :Text;
}

# How a read of a shard's copy by a node would go now, and why.
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
  drainedMs @5 :Int64;     # since when nothing new is placed there; 0 = it is not drained
  drainReason @6 :Text;
  reason @7 :Text;         # why it gets no new containers though it is not drained; "" = it does
  clockAheadMs @8 :Int64;  # of the Controller's; what of it is the way of a heartbeat is not known
  reservedFromMs @9 :Int64;    # for maintenance; reservedUntilMs 0 = it is not reserved
  reservedUntilMs @10 :Int64;
  reservedReason @11 :Text;
}
# unknown: L3 is silent; refused: pool and archive are not changed, l3State says why.
enum ClaimState { unknown @0; ok @1; refused @2; }
struct ClusterInfo {
  version @0 :Text;
  l3Address @1 :Text;
  l3State @2 :Text;        # ready, or why not: silent, or this Controller may not change its pool
  pool @3 :PoolInfo;
  models @4 :UInt32; versions @5 :UInt32; shards @6 :UInt32;
  jobs @7 :UInt32; nodes @8 :UInt32;
  crcFailures @9 :UInt64; crcRetries @10 :UInt64; lostReads @11 :UInt64;
  reads @12 :List(PathCount);
  kubernetesServer @13 :Text;   # which runs the containers; "" = the Agents do
  kubernetesState @14 :Text;    # ready, or why not
  cluster @15 :Text;            # id of the cluster, made with the Controller's state
  revision @16 :UInt64;         # of the catalogue; grows with every change
  claim @17 :ClaimState;
  damagedRecords @18 :List(Text);  # keys of the Controller's store that can't be read, and why
  kubernetesWarning @19 :Text;  # what it does without, and why; "" = nothing
  kubernetesEngine @20 :Text;   # what starts the pods of a gang together; "" = not known yet
}
struct PathCount { path @0 :Text; ops @1 :UInt64; bytes @2 :UInt64; }

# What `helios net -o json` shows: the daemons' counters, put together. A number that is not known is null.
struct NetPlane {
  daemon @0 :Text;         # "ranks": what ranks have told the Controller
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
  errors @3 :List(NetError);   # daemons that could not be asked
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
  start @2 :UInt64;        # of the process, in clock ticks after the boot: tells it from another with its pid
  ready @3 :Bool;          # it has served; what its ready file says follows
  fills @4 :Text;          # pool file that it makes at its start; "" = none
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
# Options of each program in force, as `helios conf` names them.
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
  nodesEver @3 :Int32;     # the most that it has had
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
# What a process that calls the cluster reads of that file.
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

# helios conf: an option, what is in force, and in which daemons.
struct OptionInfo {
  name @0 :Text;
  value @1 :Text;          # as OptionValue
  origin @2 :Text;
  default @3 :Text $optional;        # these are missing of an option that the command line does not know
  help @4 :Text $optional;
  flag @5 :Text $optional;
  argument @6 :Text $optional;       # what stands for the value in --help
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
  leftOut @12 :List(Text); # of a Megatron checkpoint: what it has and the model has not
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
  shards @3 :UInt64;       # derived ones; 0 = the version's own serve that split as they are
  bytes @4 :UInt64;
  seconds @5 :Float64;
  leftOut @6 :Text;        # as of Cut
}
# helios shard show: what is in a shard, and what was found of each copy.
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
# helios shard show, of a shard in the pool and of any other; what was not asked for is left out.
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
  shards @3 :UInt64; copies @4 :UInt64; tensors @5 :UInt64; bytes @6 :UInt64;   # that were read; bytes of all copies
  proved @7 :Bool;
  unproved @8 :Text;            # else what is not proved, and why
  troubles @9 :List(Text);
  archived @10 :UInt64;         # of the shards: in no pool, so read in the archive, as a whole; the checksums of their tensors
                                # are those of the commit
  onNodes @11 :UInt64;          # of the shards: in no pool or archive, so read on the nodes that have them; else like `archived`
}
struct TensorForm { dtype @0 :Text; shape @1 :List(UInt64); }
struct TensorDifference {  # of a logical tensor
  name @0 :Text;
  a @1 :TensorForm $optional; b @2 :TensorForm $optional;   # absent where the tensor is not
  elements @3 :UInt64;          # that were compared: those of both, where dtype and shape are equal
  differing @4 :UInt64;
  first @5 :List(UInt64);       # index of the first one that differs
  largest @6 :Float64;          # of |a - b|, of floats
  notFinite @7 :UInt64;         # differing floats of which one is infinite or NaN; they are not in `largest`
}
struct DiffedVersion { model @0 :Text; version @1 :Int64; split @2 :Split; }
struct ModelDiff {         # helios model diff
  a @0 :DiffedVersion; b @1 :DiffedVersion;
  equal @2 :Bool;               # of all that was compared
  tensors @3 :UInt64;           # that were compared
  byChecksum @4 :UInt64;        # those of which no byte was read
  bytesRead @5 :UInt64;         # of both
  differing @6 :UInt64;         # tensors, also those that only one has
  items @7 :List(TensorDifference);   # of them, at most --max
  byPlace @8 :Text $optional;   # why tensors are compared as they are stored
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
  config @1 :Text $optional;     # the file that describes the tensors; absent: the model has none
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
  assumed @9 :MemoryShape $optional;   # of a number of parameters
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

struct SimulationWorld {   # what helios sim carries a trace out on
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
struct SimulationRun {      # of a policy that was carried out
  againP99S @0 :Float64 $word("again_p99_s");   # of loads that read nothing for the first time
  accessMeanS @1 :Float64 $word("access_mean_s");
  moves @2 :UInt64;
  hits @3 :List(SimulationHits) $map; bytes @4 :List(SimulationBytes) $map;
  plannedBytes @5 :UInt64 $word("planned_bytes");             # of planned gangs: what their nodes read
  plannedLocalBytes @6 :UInt64 $word("planned_local_bytes");  # of these, in the node's memory when it was read
  aheadBytes @7 :UInt64 $word("ahead_bytes");                 # fetched ahead of gangs
  vainBytes @8 :UInt64 $word("vain_bytes");                   # of these, not read
}
struct SimulationPolicy {
  policy @0 :Text;
  bound @1 :Bool;          # no policy waits for less; it was not carried out
  waitS @2 :Float64 $word("wait_s"); waitMeanS @3 :Float64 $word("wait_mean_s");
  run @4 :SimulationRun $flatten $optional;
  waitP99S @5 :Float64 $word("wait_p99_s");
}
struct Simulation { world @0 :SimulationWorld; policies @1 :List(SimulationPolicy); }   # helios sim

struct TraceRecording {     # helios trace record
  out @0 :Text; seconds @1 :Float64;
  accesses @2 :UInt64; shards @3 :UInt64; nodes @4 :UInt64;
  before @5 :UInt64;       # accesses that came before the recording and were told within it; left out
  unknown @6 :UInt64;      # accesses of shards that the Controller does not know; missing
  lost @7 :UInt64;         # entries that were overwritten before they were taken; missing
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

# helios drill: what became of the faults that were made in a job. Seconds from the fault on.
struct DrillPhase { phase @0 :Text; p50Seconds @1 :Float64; p99Seconds @2 :Float64; maxSeconds @3 :Float64; }
struct DrillFault {
  fault @0 :Text;
  made @1 :UInt32;
  recovered @2 :UInt32;    # the gang has made steps again
  named @3 :UInt32;        # the right rank was named first, where a rank is to be named
  unnamed @4 :UInt32;      # another one was, or none in time
  phases @5 :List(DrillPhase);
  wrong @6 :Text;          # what was said first, the first time that it was another rank or kind; "" = it never was
}
struct DrillRefusal { fault @0 :Text; reason @1 :Text; }   # it can't be made here
struct DrillReport {
  job @0 :Text;
  faults @1 :List(DrillFault);
  refused @2 :List(DrillRefusal);
  steps @3 :UInt64;        # that were seen, of all ranks
  repeated @4 :UInt64;     # of these: made again after a fault
  differing @5 :UInt64;    # of those: with another loss than before
  jumps @6 :UInt64;        # steps that do not follow the one before in their generation, or leave one out
  missed @7 :UInt64;       # steps that were overwritten before they were seen
  doubted @8 :UInt64;      # steps made with a flipped bit, whose losses prove nothing
  cleanSteps @9 :UInt64;   # of the gang, in which nothing was done to it
  falseAlarms @10 :UInt64; # in them
  falseAlarm @11 :Text;    # the first; "" = there was none
}

# Of a row of the specification's section 6. absent: the hardware for it is not here; noRoom, noTime: it was not carried out,
# rather than take them from others; off: an option forbids it.
enum ValidationResult {
  fail @0; pass @1;
  absent @2 $word("not on this hardware"); noRoom @3 $word("not enough room"); noTime @4 $word("not enough time");
  off @5 $word("switched off");
}
struct ValidationRow {
  id @0 :Text;
  asks @1 :Text;           # what the specification asks for
  result @2 :ValidationResult;
  found @3 :Text;          # in words; "" = nothing
  value @4 :Float64;       # the figure; null: there is none
  target @5 :Text;
  limit @6 :Float64;       # of the figure
  missing @7 :Text;        # why it was not carried out; "" = it was
  decidedOnly @8 :Bool;    # `found` is what would be done: no byte was moved
  seconds @9 :Float64;
}
struct Validation {        # helios validate
  model @0 :Text;          # that was made for it and removed
  bytes @1 :UInt64;        # of that
  node @2 :Text;           # where its ranks ran; "" = nowhere
  passed @3 :UInt32; failed @4 :UInt32; notRun @5 :UInt32;
  seconds @6 :Float64;
  rows @7 :List(ValidationRow);
}

# helios help --dump-json: the tree of commands, for man pages and shell completion.
struct HelpBounds { min @0 :Int64; max @1 :Int64; }
struct HelpOption {
  flags @0 :List(Text);
  value @1 :Text;          # what stands for it in --help
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

# ---- Records of the Controller's store, as JSON. Members are added, never renamed: a record of an older release stays
# readable, and a member that it lacks has the value said here. ----
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
# The text that is called `config` everywhere: of a model in the catalogue, of an import, of a split. Beside these members it has
#   those of ModelSizes, of a model that was sliced
#   stages        a list of stages, each a list of LayerRun: of the one chunk that it has, or of its virtual stages
#   tensors       all that was read, of a model with scales (core/families/logical.h)
#   hfCopies      names of the checkpoint's tensors that repeat another one
#   hfQuantConfig hf_quant_config.json of ModelOpt
#   hf            Hugging Face's config.json, as it was
#   adapter.peft  PEFT's adapter_config.json, as it was
struct ModelConfig {
  architecture @0 :Text;         # of the family; of a model without one its model_type, or "unknown"
  dtype @1 :Text $optional;      # of the word embedding
  parameters @2 :UInt64 $optional;
  tp @3 :Int32; pp @4 :Int32;
  virtualStages @5 :Int32 = 1;
  ep @6 :Int32 $optional; etp @7 :Int32 $optional;   # of a family with experts
  unsliced @8 :Bool $optional;   # stored whole, at TP1 x PP1
  unslicedBecause @9 :Text $optional;
  asSaved @10 :Bool $optional;   # nothing says how its tensors are cut: only its own split can be read
  adapter @11 :ModelAdapter $optional;
  hfPrefix @12 :Text $optional;  # of the names in the checkpoint, where it is not the family's usual one
  megatron @13 :MegatronSource $optional;  # of a model that was imported from a Megatron checkpoint
}
# Where the model came from; leftOut: what the checkpoint has and the model has not.
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
  shards @12 :Int64 = -1;        # how many it has; -1 = not said
  shardsSum @13 :Int64 = -1;     # over them; -1 = it is not visible, or not said
  committed @14 :List(Int32);    # ranks
  split @15 :Split $optional;    # its own; nothing said: the model's
  proved @16 :Bool $optional;    # as ModelVersion.proved
  unproved @17 :Text $optional;
  generation @18 :UInt32 $optional; # of the gang within the attempt; 0 = it comes together once
}
struct ShardRecord {             # shard/MODEL/NUMBER/ID
  id @0 :Text $required;
  model @1 :Text $required; version @2 :Int64 $required;
  pp @3 :Int32 $required; tp @4 :Int32 $required;
  part @5 :Text $required;
  sizeBytes @6 :UInt64 $required;
  crc32 @7 :UInt32 $required;
  tensors @8 :UInt32 $required;
  state @9 :ShardState;          # as it was; it is found out anew, as are the next three
  location @10 :Tier;
  accesses @11 :UInt64;
  lastAccessMs @12 :Int64;
  rank @13 :Int32 = -1;          # that committed it; -1 = by an import
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

# Why a job is stopping: what comes after.
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
  nextIndex @10 :Int32 $optional;   # of a container that joins; 0 = as many as there are
}
struct JobRunContainer {
  state @0 :ContainerState $required;
  exitCode @1 :Int32; signal @2 :Int32;
  message @3 :Text;
  startedMs @4 :Int64; finishedMs @5 :Int64;
  node @6 :Text;
  numaId @7 :Int32;
  lost @8 :Int32 $optional; # containers before it that held its ranks in this attempt, and were lost
  failure @9 :FailureKind $optional; # failed: of what kind
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
  preemptor @20 :Text; preemptorAttempt @21 :Int32;   # the job that it was stopped for; "" = it was not
  placedMs @22 :Int64; releasedMs @23 :Int64;         # when its last attempt got its slots, and gave them back
  usedSlotMs @24 :Int64;                              # of attempts before
  fruitless @25 :Int32;                               # failures in a row without a new step
  steadyMs @26 :Int64;                                # the budget counts from then: the last failure, or when all ran
  reached @27 :Int64;                                  # steps, to the highest that had been made at the last failure
  lastFailure @28 :FailureKind;
  retryMs @29 :Int64;                                 # the next attempt begins not before; 0 = at once
  losses @30 :Int32;                                  # since the budget was whole
  countedMs @31 :Int64 $optional;                     # since then it has as many slots as now; 0 = since it was placed
  resizes @32 :Int32 $optional; resizedMs @33 :Int64 $optional;   # sizes that this attempt had before; when that changed last
}
# job/ID has this, and beside it `run` and `doc`.
struct JobRecord {
  events @0 :List(JobEvent);     # the newest
  loadVersion @1 :Int64 = -1;    # the version that this attempt's ranks load; -1 = none
  port @2 :Int32;                # MASTER_PORT; 0 = chosen blindly
  portAttempt @3 :Int32 = -1;    # and of which attempt; -1 = of the last one
  ledger @4 :JobLedgerRecord;
  image @5 :Text;                # what dockerImage meant when it was first looked at: REPOSITORY@sha256:..., or an id; "" = not known yet
  gangMade @6 :Int32;            # the last attempt whose Volcano Job was there; 0 = none
  portContainer @7 :Int32 = -1 $optional; # the container that rank 0 was in when the port was found; -1 = that of now
}
struct JobLedgerRecord {
  parts @0 :List(UInt64);        # ms, in the order of core/ledger/ledger.h
  part @1 :Int32;                # what goes on
  openMs @2 :Int64;              # of the ranks' run since the last report
  openSaveMs @3 :Int64;          # saves in that time
  bootId @4 :Text; bootMs @5 :Int64; wallMs @6 :Int64;   # when this was written, on both clocks
  step @7 :Int64 = -1; bestStep @8 :Int64 = -1; usualMs @9 :Int64;
  steps @10 :Int64; replayed @11 :Int64; tokens @12 :UInt64;
  reported @13 :Bool; over @14 :Bool;
  toldTokens @15 :UInt64; generation @16 :UInt32;        # of the last report
}
# failure/JOB/ATTEMPT is JobFailure.
# A job file with everything in it that differs from the default (core/job/job.h); it is read as any job file.
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
# It has a member `kubernetes`, as the job file says it (core/job/podspec.h), where it is said. Of an elastic job
# data_parallel_size is {min, max}.
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
# What is stored once of a job: `doc` has this, and beside it `spec`, a JobSpec.
struct JobDoc {
  yaml @0 :Text;
  source @1 :Text;
  key @2 :Text;                  # idempotencyKey of the submission; "" = none
  launch @3 :JobLaunch;
  seq @4 :Int64;                 # the number in its id
  gang @5 :Text;                 # label of its objects in Kubernetes; "" = Agents run it
}
# node/NAME is NodeInfo, and of a lost node this beside it.
struct NodeAbsence { lostMs @0 :Int64; seenMs @1 :Int64; }
# Of one that failed its health test: when, by the Controller's clock, and when it says the test was.
struct NodeFailure { failedMs @0 :Int64 $optional; failedTestMs @1 :Int64 $optional; }
struct NodeDrain { drainedMs @0 :Int64 $optional; drainReason @1 :Text $optional; }
struct NodeReservation { reservedFromMs @0 :Int64 $optional; reservedUntilMs @1 :Int64 $optional; reservedReason @2 :Text $optional; }
# queue/NAME: what of the use of jobs that were forgotten counted then (core/queue/queue.h).
struct QueueUse { used @0 :Float64 $required; atMs @1 :Int64 $required; }
struct JobNumber { last @0 :Int64 $required; }                # seq/job
# cut/MODEL/VERSION/tpN[-epN-etpN]: all shards of a cut, so that there is no half one.
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
  goalHad @15 :Bool;             # a copy was there before
  beganMs @16 :Int64 $required; switchedMs @17 :Int64;
  bytesPerS @18 :UInt64;         # 0: no limit of its own
}
# use/ID: what is known of the use of a shard and of its life, written now and then. Times are those of the wall clock.
struct UseReader { node @0 :Text $required; now @1 :UInt32; before @2 :UInt32; }   # accesses in this window and in the one before
struct UseChange {
  timeMs @0 :Int64 $required;
  from @1 :Text $required; to @2 :Text $required; reason @3 :Text $required;
  node @4 :Text; value @5 :Float64; limit @6 :Float64;
}
struct UseRecord {
  lastMs @0 :Int64 $required;    # 0: it was not read
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

# Files beside what they speak of.
struct ArchiveOwner { cluster @0 :Text $required; revision @1 :UInt64 $required; }               # helios-cluster.json of an archive
struct ShimOptions { foreignTopology @0 :Bool $required; logMaxBytes @1 :UInt64 $required; executor @2 :Text $optional; }   # shim.json of a container
