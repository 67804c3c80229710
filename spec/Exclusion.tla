----------------------------- MODULE Exclusion -----------------------------
(* At most one leader at a time, with true time in small integers.           *)
(*                                                                           *)
(* All times are countdowns that `Time` moves: what is left of a deadline,   *)
(* of an entry, of a quarantine. So there is no end of time in this module:  *)
(* every behaviour of any length is covered.                                 *)
(*                                                                           *)
(* What Ticks.tla shows is taken for granted: an entry is alive for TTL      *)
(* after it was written, and then for as long as its node likes.             *)
(*                                                                           *)
(* Tokens are left out: no rule about F says anything on time. So one round  *)
(* wins (Q grants); a second one, of the same id, is a renewal, or else the  *)
(* commit, which differs from it by counting from the first round's start.   *)
EXTENDS Lives, TLC

CONSTANTS
  TTL,         \* the lease: as long as nodes keep an entry
  Candidates,  \* Candidates[a]: whose attempt a is. Attempts begin in the order of their numbers
  Renewers,    \* the attempts that may go through a second round
  Stoppers     \* the attempts that may give up or stop, and release

vars == <<server, lives, attempt>>

Attempt == DOMAIN Candidates

(* phase: idle, grant, leads, renew (leads, and a round is under way), out.  *)
(* left:  of the deadline; round: of the one that this round would lead to;  *)
(* both count from before a round's first byte.                              *)
(* kept:  there is a resume state on the disk; resumed: the process has read *)
(* it, and its leader file says false until the renewal is good.             *)
Idle == [phase |-> "idle", left |-> 0, round |-> 0, renewed |-> FALSE, kept |-> FALSE, resumed |-> FALSE,
         grant |-> [n \in Node |-> Unsent], renew |-> [n \in Node |-> Unsent],
         release |-> [n \in Node |-> Unsent]]

Init == LivesInit /\ attempt = [a \in Attempt |-> Idle]

Sent == [n \in Node |-> Due]
Leads(a) == /\ attempt[a].phase \in {"leads", "renew"} /\ ~attempt[a].resumed
            /\ attempt[a].left > 0

\* What a node stores as the owner.
Id(a) == IF Mutant = "same id" THEN Largest({b \in Attempt : Candidates[b] = Candidates[a]}) ELSE a

SameCandidate(a, b) == a # b /\ Candidates[a] = Candidates[b]

----------------------------------------------------------------------------
(* The candidate.                                                            *)

Begin(a) ==
  /\ attempt[a].phase = "idle"
  /\ \A b \in Attempt : b < a => attempt[b].phase # "idle"
  \* A new attempt begins when the last one is given up and the leader file says false.
  /\ \A b \in Attempt : SameCandidate(a, b) /\ b < a =>
       attempt[b].phase = "out" \/ (Mutant = "attempt while leading" /\ Leads(b))
  /\ attempt' = [attempt EXCEPT ![a].phase = "grant", ![a].grant = Sent, ![a].round = TTL]
  /\ UNCHANGED <<server, lives>>

\* The deadline that a round that is won now gives.
Deadline(a) == IF Mutant = "deadline from the quorum" THEN TTL ELSE attempt[a].round

Win(a) ==
  LET t == attempt[a] IN
  /\ t.phase = "grant" /\ Deadline(a) > 0
  /\ \E R \in SUBSET Replied(t.grant) : HasQuorum(Saying(t.grant, R, {"GRANTED"}))
  /\ attempt' = [attempt EXCEPT ![a].phase = "leads", ![a].left = Deadline(a), ![a].kept = TRUE,
                                ![a].grant = Rest(t.grant), ![a].round = 0]
  /\ UNCHANGED <<server, lives>>

BeginRenewal(a) ==
  LET t == attempt[a] IN
  /\ a \in Renewers /\ ~t.renewed /\ t.left > 0
  /\ \/ t.phase = "leads"
     \* Killed on its way out, and started again: the resume state is still there.
     \/ t.phase = "out" /\ t.kept /\ Mutant = "erased after the release"
  /\ attempt' = [attempt EXCEPT ![a].phase = "renew", ![a].renewed = TRUE, ![a].renew = Sent,
                                ![a].round = TTL, ![a].resumed = (t.phase = "out")]
  /\ UNCHANGED <<server, lives>>

Renewed(a) ==
  LET t == attempt[a] IN
  /\ t.phase = "renew" /\ t.left > 0
  /\ \E R \in SUBSET Replied(t.renew) : HasQuorum(Saying(t.renew, R, {"OK"}))
  /\ attempt' = [attempt EXCEPT ![a].phase = "leads", ![a].left = Deadline(a), ![a].round = 0,
                                ![a].renew = Rest(t.renew), ![a].resumed = FALSE]
  /\ UNCHANGED <<server, lives>>

\* Gives up, stops or finds itself deposed: file false, resume state erased, release sent. The mutant
\* leaves the resume state for later.
Stop(a) ==
  LET t     == attempt[a]
      later == Mutant = "erased after the release" /\ t.kept /\ t.left > 0
  IN
  /\ a \in Stoppers /\ t.phase \in {"grant", "leads", "renew"}
  /\ attempt' = [attempt EXCEPT ![a].phase = "out", ![a].release = Sent, ![a].round = 0,
                                ![a].kept = later, ![a].left = IF later THEN @ ELSE 0,
                                ![a].grant = Rest(t.grant), ![a].renew = Rest(t.renew)]
  /\ UNCHANGED <<server, lives>>

----------------------------------------------------------------------------
(* A node answers. What is refused and has no vector to tell is left out, as *)
(* in FencedRedlock. An entry whose time is up may be over, or may not yet.  *)

KeptFor == IF Mutant = "capped" THEN TTL - 1 ELSE TTL

Answer(a, n, l, round, function(_)) ==
  LET t == attempt[a]
      s == server[n][l]
  IN
  /\ t[round][n] = Due /\ Open(n, l)
  /\ \E over \in BOOLEAN :
       LET entry == [owner |-> IF over THEN Nobody ELSE s.owner, fence |-> 0]
           r     == function(entry)
       IN
       /\ over => s.owner # Nobody /\ s.left = 0
       /\ r.keep \/ (t.phase = round /\ s.vector # Zero) \/ r.status = "OK"
       /\ server' = [server EXCEPT ![n][l].owner = r.owner,
                                   ![n][l].left = CASE r.keep -> KeptFor
                                                    [] r.owner = Nobody -> 0
                                                    [] OTHER -> @]
       /\ attempt' = [attempt EXCEPT ![a][round][n] =
            IF t.phase # round THEN Done
            ELSE [status |-> IF r.keep THEN r.status ELSE "NO", fence |-> 0,
                  number |-> s.number, vector |-> s.vector]]
  /\ UNCHANGED lives

\* Whether the entry is an older attempt's of the same candidate.
Older(entry, a) == entry.owner # Nobody /\ entry.owner < Id(a) /\ SameCandidate(a, entry.owner)

AnswerGrant(a, n, l)   == Answer(a, n, l, "grant",   LAMBDA e : GrantAt(e, Id(a), Older(e, a), 0))
AnswerRenew(a, n, l)   == Answer(a, n, l, "renew",   LAMBDA e : RenewAt(e, Id(a), 0))
AnswerRelease(a, n, l) == Answer(a, n, l, "release", LAMBDA e : ReleaseAt(e, Id(a)))

----------------------------------------------------------------------------

Less(x) == IF x > 0 THEN x - 1 ELSE 0

Time ==
  /\ server' = [n \in Node |-> [l \in Life(n) |->
       [server[n][l] EXCEPT !.left = Less(@), !.rest = Less(@)]]]
  /\ attempt' = [a \in Attempt |-> [attempt[a] EXCEPT !.left = Less(@), !.round = Less(@)]]
  /\ <<server, attempt>>' # <<server, attempt>>
  /\ UNCHANGED lives

Next ==
  \/ Time
  \/ LivesNext
  \/ \E a \in Attempt :
       \/ Begin(a) \/ Win(a) \/ BeginRenewal(a) \/ Renewed(a) \/ Stop(a)
       \/ \E n \in Node : \E l \in Life(n) :
            AnswerGrant(a, n, l) \/ AnswerRenew(a, n, l) \/ AnswerRelease(a, n, l)

Spec == Init /\ [][Next]_vars

----------------------------------------------------------------------------

OneLeader == \A a, b \in Attempt : Leads(a) /\ Leads(b) => Candidates[a] = Candidates[b]

Two   == <<1, 2>>      \* for Candidates: two with one attempt each,
Again == <<1, 1, 2>>   \* and one that tries twice before another comes

Symmetry == Permutations(Mortal \ Replaced) \cup Permutations(Node \ Mortal)
=============================================================================
