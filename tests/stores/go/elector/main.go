// An elector of client-go, unmodified, for the test that it and ours exclude each other.
//
//	elector KUBECONFIG NAMESPACE NAME IDENTITY LEASE RENEW RETRY HOLD RELEASE
//
// Times are Go durations. Each line of the output is `lead` or `end`, and the boot clock in
// nanoseconds; `end` is written before the lease is given back. With HOLD it gives the lease back
// after that time and tries again, for ever; with 0s it keeps it. SIGTERM gives it back and ends.
// RELEASE false: it never gives back, and lets the lease run out.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

func say(what string) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic(err)
	}
	fmt.Printf("%s %d\n", what, now.Nano())
}

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return value
}

func duration(text string) time.Duration { return must(time.ParseDuration(text)) }

func main() {
	args := os.Args[1:]
	config := must(clientcmd.BuildConfigFromFlags("", args[0]))
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: args[1], Name: args[2]},
		Client:     must(v1.NewForConfig(config)),
		LockConfig: resourcelock.ResourceLockConfig{Identity: args[3]},
	}
	hold := duration(args[7])
	stopping, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	for stopping.Err() == nil {
		once(stopping, hold, leaderelection.LeaderElectionConfig{
			Lock:            lock,
			LeaseDuration:   duration(args[4]),
			RenewDeadline:   duration(args[5]),
			RetryPeriod:     duration(args[6]),
			ReleaseOnCancel: args[8] == "true",
		})
	}
}

// once runs until the lease was given back or lost. The word `end` comes exactly once for each
// `lead`, and before the release.
func once(stopping context.Context, hold time.Duration, config leaderelection.LeaderElectionConfig) {
	// Not the signal's own: client-go gives the lease back as soon as its context ends.
	running, giveBack := context.WithCancel(context.Background())
	defer giveBack()
	var mutex sync.Mutex
	leading := false
	change := func(to bool) {
		mutex.Lock()
		defer mutex.Unlock()
		if leading != to {
			leading = to
			say(map[bool]string{true: "lead", false: "end"}[to])
		}
	}
	began := make(chan struct{})
	config.Callbacks = leaderelection.LeaderCallbacks{
		OnStartedLeading: func(context.Context) { change(true); close(began) },
		OnStoppedLeading: func() { change(false) },
	}
	go func() {
		var enough <-chan time.Time
		for {
			select {
			case <-began:
				began = nil
				if hold > 0 {
					enough = time.After(hold)
				}
			case <-enough:
				change(false)
				giveBack()
				return
			case <-stopping.Done():
				change(false)
				giveBack()
				return
			case <-running.Done():
				return
			}
		}
	}()
	must(leaderelection.NewLeaderElector(config)).Run(running)
}
