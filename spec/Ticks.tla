------------------------------- MODULE Ticks -------------------------------
(* Time without a wall clock.                                                *)
(*                                                                           *)
(* One node counts time in ticks that its agent adds; a lease ends when the  *)
(* count has reached the value that was written at its grant. Safe means:    *)
(* whatever is late, lost, paused or replaced, a lease of TTL that was       *)
(* granted at true time a is not over before a + TTL.                        *)
(*                                                                           *)
(* True time is explicit (`now`) and only `Time` moves it, so that any       *)
(* number of steps may happen within one instant and any time may pass       *)
(* between two. A pause needs no action of its own: it is time that passes   *)
(* while an enabled action is not taken. An agent's clock has the rate of    *)
(* true time; its zero does not matter, for it is used for differences only. *)
(*                                                                           *)
(* A connection carries one request or one answer at a time, so that both    *)
(* are kept in its record:                                                   *)
(*                                                                           *)
(*            Open           Land             Read                           *)
(*     free -------> asking ------> accepted ------> idle <------+           *)
(*                                             SendTick |        | Read      *)
(*                                                      v  Land  |           *)
(*                                                   ticking --> ticked      *)
(*                                                                           *)
(* Drop ends a connection at any point. What is `asking` or `ticking` then   *)
(* stays on its way without a reader (live = FALSE) and may still land, as   *)
(* late as it likes, or never (Lose).                                        *)
EXTENDS Integers, FiniteSets

CONSTANTS
  C,        \* the cap: no tick adds more
  Slack,    \* L: time is counted from the sending of the last tick, or from L before its answer
            \* was read, whichever is later. L = C is "from the sending", L = 0 "from the answer".
  TTL,      \* the lease
  W,        \* the agent's wake-up interval (Quiet only: otherwise it may wake at any time)
  Delay,    \* the longest round trip of a tick (Quiet only: otherwise there is no bound)
  Agents,   \* how many agents may be alive at once: 1..Agents
  Slots,    \* how many connections exist at once, dropped ones with a request on its way included
  Horizon,  \* the end of time, where a configuration uses the constraint Bounded
  Mutant    \* "none", or what is changed in the rule (not every change does harm: see README.md)

ASSUME /\ {C, Slack, TTL, W, Delay, Agents, Slots, Horizon} \subseteq Nat
       /\ Slack <= C
       /\ Mutant \in {"none",
                      "agent does not cap", "node does not cap", "nobody caps",
                      "one extra cap", "no extra cap", "one unit less",
                      "no nonce check", "nonce kept", "counted from asking",
                      "cap changes", "cap changes, lease keeps C"}

VARIABLES
  now,         \* true time
  tick,        \* the node's count
  cap,         \* the node's C
  registered,  \* the nonce of the connection that may tick, 0 for none
  lease,       \* NoLease, or when it was granted and at which tick it ends
  conn,        \* the connections
  nonces       \* how many nonces were drawn

vars == <<now, tick, cap, registered, lease, conn, nonces>>

Min(x, y) == IF x < y THEN x ELSE y
Max(x, y) == IF x > y THEN x ELSE y

NoLease == [granted |-> -1, expires |-> -1]
Free    == [at |-> "free", live |-> FALSE, agent |-> 0, nonce |-> 0, sent |-> 0, ref |-> 0, d |-> 0]

Granted == lease # NoLease
Over    == Granted /\ tick >= lease.expires

----------------------------------------------------------------------------
(* The rule, and what each mutant makes of it.                               *)

\* L where the cap is k: it goes with the cap, where that changes.
L(k) == (k * Slack) \div C

\* C as the node knows it after agent a has registered.
CapAfter(a) == IF Mutant \in {"cap changes", "cap changes, lease keeps C"} THEN a * C ELSE C

\* What a lease is longer than TTL. A cap, because the tick that is on its way at the grant counts
\* time from before it; and L, because the one after that may begin L before the first's answer.
Extra == CASE Mutant = "one extra cap"              -> cap
           [] Mutant = "no extra cap"               -> 0
           [] Mutant = "one unit less"              -> cap + L(cap) - 1
           [] Mutant = "cap changes, lease keeps C" -> C + Slack
           [] OTHER                                 -> cap + L(cap)

\* What the agent sends: the time since ref.
Counted(c) == IF Mutant \in {"agent does not cap", "nobody caps"}
              THEN now - conn[c].ref
              ELSE Min(now - conn[c].ref, CapAfter(conn[c].agent))

\* What the function adds.
Added(c) == IF Mutant \in {"node does not cap", "nobody caps"}
            THEN conn[c].d
            ELSE Min(conn[c].d, cap)

MayTick(c) == conn[c].nonce = registered \/ Mutant = "no nonce check"

\* From when a new connection counts: from the reading of its registration's answer.
FirstRef(c) == IF Mutant = "counted from asking" THEN conn[c].sent ELSE now

NextRef(c) == Max(conn[c].sent, now - L(CapAfter(conn[c].agent)))

\* The nonce of agent a's new connection. The mutant draws one for an agent's whole life.
Nonce(a) == IF Mutant = "nonce kept" THEN a ELSE nonces + 1

----------------------------------------------------------------------------
(* The agents.                                                               *)

Open(c, a) ==
  /\ conn[c] = Free
  /\ \A o \in 1..Slots : ~(conn[o].live /\ conn[o].agent = a)
  /\ conn' = [conn EXCEPT ![c] = [Free EXCEPT !.at = "asking", !.live = TRUE, !.agent = a,
                                              !.nonce = Nonce(a), !.sent = now]]
  /\ nonces' = nonces + 1
  /\ UNCHANGED <<now, tick, cap, registered, lease>>

SendTick(c) ==
  /\ conn[c].at = "idle"
  /\ conn' = [conn EXCEPT ![c].at = "ticking", ![c].d = Counted(c), ![c].sent = now]
  /\ UNCHANGED <<now, tick, cap, registered, lease, nonces>>

Read(c) ==
  /\ \/ /\ conn[c].at = "accepted"
        /\ conn' = [conn EXCEPT ![c].at = "idle", ![c].ref = FirstRef(c)]
     \/ /\ conn[c].at = "ticked"
        /\ conn' = [conn EXCEPT ![c].at = "idle", ![c].ref = NextRef(c)]
  /\ UNCHANGED <<now, tick, cap, registered, lease, nonces>>

\* A time-out, a death, a refusal: the agent asks for a new connection before it ticks again.
Drop(c) ==
  /\ conn[c].live
  /\ conn' = [conn EXCEPT ![c] = IF @.at \in {"asking", "ticking"}
                                 THEN [@ EXCEPT !.live = FALSE] ELSE Free]
  /\ UNCHANGED <<now, tick, cap, registered, lease, nonces>>

----------------------------------------------------------------------------
(* The node.                                                                 *)

LandAsking(c) ==
  /\ conn[c].at = "asking"
  /\ registered' = conn[c].nonce
  /\ cap' = CapAfter(conn[c].agent)
  /\ conn' = [conn EXCEPT ![c] = IF @.live THEN [@ EXCEPT !.at = "accepted"] ELSE Free]
  /\ UNCHANGED <<now, tick, lease, nonces>>

\* A refused tick frees the connection: with REFUSED the agent can do nothing but drop it.
LandTick(c) ==
  /\ conn[c].at = "ticking"
  /\ tick' = IF MayTick(c) THEN tick + Added(c) ELSE tick
  /\ conn' = [conn EXCEPT ![c] = IF @.live /\ MayTick(c) THEN [@ EXCEPT !.at = "ticked"] ELSE Free]
  /\ UNCHANGED <<now, cap, registered, lease, nonces>>

\* One lease is enough: leases do not touch the ticks, and the one may be granted at any moment.
Grant ==
  /\ ~Granted
  /\ lease' = [granted |-> now, expires |-> tick + TTL + Extra]
  /\ UNCHANGED <<now, tick, cap, registered, conn, nonces>>

----------------------------------------------------------------------------
(* The rest of the world.                                                    *)

Time == now' = now + 1 /\ UNCHANGED <<tick, cap, registered, lease, conn, nonces>>

Lose(c) ==
  /\ conn[c] # Free /\ ~conn[c].live
  /\ conn' = [conn EXCEPT ![c] = Free]
  /\ UNCHANGED <<now, tick, cap, registered, lease, nonces>>

Init ==
  /\ now = 0 /\ tick = 0 /\ cap = C /\ registered = 0 /\ nonces = 0
  /\ lease = NoLease
  /\ conn = [c \in 1..Slots |-> Free]

Next ==
  \/ Time
  \/ Grant
  \/ \E c \in 1..Slots : \/ \E a \in 1..Agents : Open(c, a)
                         \/ SendTick(c) \/ Read(c) \/ Drop(c)
                         \/ LandAsking(c) \/ LandTick(c) \/ Lose(c)

Spec == Init /\ [][Next]_vars

----------------------------------------------------------------------------
(* Quiet times: one registered agent that wakes every W, and round trips of  *)
(* at most Delay. Time waits for whoever is due.                             *)

QuietInit ==
  /\ now = 0 /\ tick = 0 /\ cap = C /\ registered = 1 /\ nonces = 1
  /\ lease = NoLease
  /\ conn = [c \in 1..Slots |-> IF c = 1
                                THEN [Free EXCEPT !.at = "idle", !.live = TRUE, !.agent = 1, !.nonce = 1]
                                ELSE Free]

Due == now - conn[1].sent >= (IF conn[1].at = "idle" THEN W ELSE Delay)

QuietTime == ~Due /\ Time
WakeUp    == Due /\ SendTick(1)

QuietNext == QuietTime \/ Grant \/ WakeUp \/ Read(1) \/ LandTick(1)

QuietSpec == QuietInit /\ [][QuietNext]_vars

----------------------------------------------------------------------------
(* What must hold.                                                           *)

LeaseNeverEarly == Over => now >= lease.granted + TTL

\* In quiet times ...
LeaseNeverLate == Granted /\ ~Over => now < lease.granted + TTL + Extra + W + Delay
WithoutTheWay  == Granted /\ ~Over => now <= lease.granted + TTL + Extra + W  \* too strict
NothingLost    == conn[1].at = "idle" => tick = conn[1].sent

\* With L = C, max(S, A - L) may as well be S: no tick counts more than C anyway.
ASSUME \A S \in 0..(4 * C) : \A A \in S..(4 * C) : \A later \in A..(4 * C) :
         Min(later - Max(S, A - C), C) = Min(later - S, C)

----------------------------------------------------------------------------
(* Bounds.                                                                   *)

UntilOver == ~Over          \* nothing is looked for after the lease's end
Bounded   == now <= Horizon /\ nonces <= Horizon

\* All that the future depends on: differences instead of instants, "may it tick" instead of a
\* nonce, and the connections without their order. It is finite although time is not, so that a
\* run with it covers every behaviour of any length. What the rule caps at C need not be told
\* apart beyond C; a mutant that does not cap, or caps later, has farther to look.
Far == CASE Mutant = "nobody caps" -> TTL + 4 * C
         [] Mutant \in {"cap changes", "cap changes, lease keeps C"} -> Agents * C
         [] OTHER -> C

Since(t) == Min(now - t, Far)

Essence(c) ==
  LET k == conn[c] IN
  <<k.at, k.live, k.nonce = registered,
    IF Mutant = "none" THEN 0 ELSE k.agent,
    CASE k.at = "idle"                                  -> Since(k.ref)
      [] k.at \in {"ticking", "ticked"} /\ k.live       -> Since(k.sent)
      [] k.live /\ Mutant = "counted from asking"       -> Since(k.sent)
      [] OTHER                                          -> 0,
    IF k.at = "ticking" THEN Min(k.d, Far) ELSE 0,
    IF Mutant = "nonce kept" THEN k.nonce ELSE 0>>

View ==
  LET essences == {Essence(c) : c \in 1..Slots} IN
  <<[e \in essences |-> Cardinality({c \in 1..Slots : Essence(c) = e})],
    cap,
    IF Granted THEN <<Min(now - lease.granted, TTL), Max(lease.expires - tick, 0)>> ELSE <<>>,
    IF Mutant = "nonce kept" THEN registered ELSE 0>>
=============================================================================
