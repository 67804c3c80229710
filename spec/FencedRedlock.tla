--------------------------- MODULE FencedRedlock ---------------------------
(* Fencing tokens, without any clock: an entry may be over at any moment,    *)
(* a message may arrive at any later one, also when its sender has given up, *)
(* and a quarantine may last no time at all.                                 *)
(*                                                                           *)
(* Giving up, releasing and losing messages need no actions of their own: an *)
(* attempt that gave up takes no more steps, an entry that was released is   *)
(* one that is over, and a lost message never arrives.                       *)
EXTENDS Lives, TLC

CONSTANTS
  Attempts,   \* how many there are; each has an id of its own
  Rounds,     \* 1: attempts win by their guess only; 2: also by commit
  Renewers    \* the attempts that may renew, once each

Attempt == 1..Attempts

vars == <<server, lives, attempt>>

\* phase: idle, grant, commit (a round is under way), leads, renew; stale: a renewal was good that
\* must not have been. `floor`: the largest token won when the attempt, or its renewal, began, until
\* it is found to be in order.
Idle == [phase |-> "idle", guess |-> 0, token |-> 0, floor |-> 0, renewed |-> FALSE,
         grant |-> [n \in Node |-> Unsent], commit |-> [n \in Node |-> Unsent],
         renew |-> [n \in Node |-> Unsent], adopt |-> [n \in Node |-> Unsent]]

Init == LivesInit /\ attempt = [a \in Attempt |-> Idle]

Sent == [n \in Node |-> Due]
Won == {a \in Attempt : attempt[a].phase \in {"leads", "renew", "stale"}}
LargestWon == Largest({0} \cup {attempt[a].token : a \in Won})

----------------------------------------------------------------------------
(* The candidate (store.py, quorum.py). A round is decided by the replies of *)
(* any R that have arrived by then.                                          *)

Known == UNION {{server[n][l].fence + 1 : l \in Life(n)} : n \in Node}

\* They are numbered in the order in which they begin. A guess is one more than the F of some node,
\* as that node's `freed` message said; 0: no guess.
Begin(a) ==
  /\ attempt[a].phase = "idle"
  /\ \A b \in 1..(a - 1) : attempt[b].phase # "idle"
  /\ \E guess \in (IF Rounds = 1 THEN {} ELSE {0}) \cup Known :
       attempt' = [attempt EXCEPT ![a].phase = "grant", ![a].guess = guess, ![a].grant = Sent,
                                  ![a].floor = LargestWon]
  /\ UNCHANGED <<server, lives>>

Leading(t, token) == [t EXCEPT !.phase = "leads", !.token = token,
                               !.floor = IF token > t.floor THEN 0 ELSE @]

JudgeGrant(a) ==
  LET t == attempt[a] IN
  /\ t.phase = "grant"
  /\ \E R \in SUBSET Replied(t.grant) :
       LET given     == Saying(t.grant, R, {"COMMITTED", "GRANTED"})
           committed == Saying(t.grant, R, {"COMMITTED"})
           highest   == Largest({t.grant[n].fence : n \in given})
       IN
       /\ HasQuorum(IF Rounds = 1 THEN committed ELSE given)
       /\ attempt' = [attempt EXCEPT ![a] =
            IF HasQuorum(committed)
            THEN [Leading(t, IF Mutant = "increment" THEN highest ELSE t.guess)
                  EXCEPT !.grant = Rest(t.grant)]
            ELSE [t EXCEPT !.phase = "commit", !.grant = Rest(t.grant), !.commit = Sent,
                           !.token = Max(highest, t.guess) + 1]]
  /\ UNCHANGED <<server, lives>>

JudgeCommit(a) ==
  LET t == attempt[a] IN
  /\ t.phase = "commit"
  /\ \E R \in SUBSET Replied(t.commit) : HasQuorum(Saying(t.commit, R, {"OK"}))
  /\ attempt' = [attempt EXCEPT ![a] = [Leading(t, t.token) EXCEPT !.commit = Rest(t.commit)]]
  /\ UNCHANGED <<server, lives>>

BeginRenewal(a) ==
  LET t == attempt[a] IN
  /\ t.phase = "leads" /\ a \in Renewers /\ ~t.renewed
  /\ attempt' = [attempt EXCEPT ![a].phase = "renew", ![a].renewed = TRUE, ![a].renew = Sent,
                                ![a].floor = LargestWon]
  /\ UNCHANGED <<server, lives>>

JudgeRenewal(a) ==
  LET t == attempt[a] IN
  /\ t.phase = "renew"
  /\ \E R \in SUBSET Replied(t.renew) : HasQuorum(Saying(t.renew, R, {"OK"}))
  /\ attempt' = [attempt EXCEPT ![a].phase = IF t.token < t.floor THEN "stale" ELSE "leads",
                                ![a].floor = 0, ![a].renew = Rest(t.renew), ![a].adopt = Sent]
  /\ UNCHANGED <<server, lives>>

----------------------------------------------------------------------------
(* A node answers: server l of node n. Each message is executed once at most.*)
(* A "no" changes nothing at the node, and all that the candidate may learn  *)
(* from it is a vector; without one, and if nobody waits for an answer that  *)
(* changes nothing, the message may as well be lost.                         *)

Answer(a, n, l, round, function(_)) ==
  LET t == attempt[a]
      s == server[n][l]
  IN
  /\ t[round][n] = Due /\ Open(n, l)
  /\ \E over \in BOOLEAN :
       LET entry == [owner |-> IF over THEN Nobody ELSE s.owner, fence |-> s.fence]
           r     == function(entry)
       IN
       /\ over => s.owner # Nobody
       /\ IF t.phase = round THEN r.keep \/ s.vector # Zero
                             ELSE r.keep /\ (r.owner # s.owner \/ r.fence # s.fence)
       /\ server' = [server EXCEPT ![n][l].owner = r.owner, ![n][l].fence = r.fence]
       /\ attempt' = [attempt EXCEPT ![a][round][n] =
            IF t.phase # round THEN Done
            ELSE [status |-> IF r.keep THEN r.status ELSE "NO", fence |-> r.said,
                  number |-> s.number, vector |-> s.vector]]
  /\ UNCHANGED lives

AnswerGrant(a, n, l)  == Answer(a, n, l, "grant",  LAMBDA e : GrantAt(e, a, FALSE, attempt[a].guess))
AnswerCommit(a, n, l) == Answer(a, n, l, "commit", LAMBDA e : CommitAt(e, a, attempt[a].token))
AnswerRenew(a, n, l)  == Answer(a, n, l, "renew",  LAMBDA e : RenewAt(e, a, attempt[a].token))
AnswerAdopt(a, n, l)  == Answer(a, n, l, "adopt",  LAMBDA e : AdoptAt(e, a, attempt[a].token))

----------------------------------------------------------------------------

Next ==
  \/ LivesNext
  \/ \E a \in Attempt :
       \/ Begin(a) \/ JudgeGrant(a) \/ JudgeCommit(a) \/ BeginRenewal(a) \/ JudgeRenewal(a)
       \/ \E n \in Node : \E l \in Life(n) :
            \/ AnswerGrant(a, n, l) \/ AnswerCommit(a, n, l)
            \/ AnswerRenew(a, n, l) \/ AnswerAdopt(a, n, l)

Spec == Init /\ [][Next]_vars

----------------------------------------------------------------------------
(* What must hold.                                                           *)

TokensDistinct == \A a, b \in Won : a # b => attempt[a].token # attempt[b].token

\* Larger than every token that was won before the attempt began.
TokensGrow == \A a \in Won : attempt[a].phase = "leads" => attempt[a].token > attempt[a].floor

\* No renewal is good if a larger token had been won before it began.
NoStaleRenewal == \A a \in Attempt : attempt[a].phase # "stale"

\* For a mutant whose shortest trace is long: where to look for it. Ghosts do not vote, nobody guesses
\* beyond 1, and the first attempt wins on the mortal nodes before the second begins.
Narrow == /\ \A a \in Attempt : attempt[a].guess <= 1
          /\ \A n \in Replaced : server[n][1].owner = Nobody
          /\ \A n \in Node \ Mortal : attempt[1].grant[n] \in {Unsent, Due}
          /\ attempt[2].phase # "idle" => attempt[1].phase = "leads"

Symmetry == Permutations(Mortal \ Replaced) \cup Permutations(Node \ Mortal)
=============================================================================
