// redsync, the Redlock of the Go world, as a peer. It has no token.
package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredislib "github.com/redis/go-redis/v9"
	"leasekeeper.dev/benchmarks/worker"
)

func main() {
	job := worker.Read()
	pools := make([]redis.Pool, 0, len(job.Addresses))
	for _, address := range job.Addresses {
		pools = append(pools, goredis.NewPool(goredislib.NewClient(&goredislib.Options{
			Addr:            address,
			Username:        job.Username,
			Password:        job.Password,
			DisableIdentity: true,
			PoolSize:        max(job.Tasks, 10), // no task ever waits for a connection
		})))
	}
	locks := redsync.New(pools...)
	switch job.Kind {
	case "acquire":
		acquire(job, locks)
	case "throughput":
		throughput(job, locks)
	case "contend":
		contend(job, locks)
	}
}

func acquire(job worker.Job, locks *redsync.Redsync) {
	options := []redsync.Option{redsync.WithTries(1)}
	if job.Variant == "fail-fast" {
		options = append(options, redsync.WithFailFast(true))
	}
	mutex := locks.NewMutex(job.Lock, options...)
	seconds := []float64{}
	for i := range job.WarmUp + job.Count {
		if i == job.WarmUp {
			worker.Pause(job.StartAt - worker.Boot())
		}
		began := time.Now()
		worker.Must(mutex.Lock())
		if i >= job.WarmUp {
			seconds = append(seconds, time.Since(began).Seconds())
		}
		_, err := mutex.Unlock()
		worker.Must(err)
		worker.Pause(job.Hold)
	}
	worker.Emit(map[string]any{"seconds": seconds})
}

func throughput(job worker.Job, locks *redsync.Redsync) {
	var pairs atomic.Int64
	var tasks sync.WaitGroup
	worker.Pause(job.StartAt - worker.Boot())
	began, end := worker.Boot(), worker.Boot()+job.Seconds
	for task := range job.Tasks {
		tasks.Go(func() {
			mutex := locks.NewMutex(fmt.Sprintf("%s-%d", job.Lock, task))
			for worker.Boot() < end {
				worker.Must(mutex.Lock())
				_, err := mutex.Unlock()
				worker.Must(err)
				pairs.Add(1)
			}
		})
	}
	tasks.Wait()
	worker.Emit(map[string]any{"pairs": pairs.Load(), "seconds": worker.Boot() - began})
}

func contend(job worker.Job, locks *redsync.Redsync) {
	var tenures worker.Tenures
	var tasks sync.WaitGroup
	worker.Pause(job.StartAt - worker.Boot())
	end := job.StartAt + job.Seconds
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(job.Seconds*1e9))
	defer cancel()
	for task := range job.Tasks {
		tasks.Go(func() {
			mutex := locks.NewMutex(job.Lock, redsync.WithTries(1<<30))
			for worker.Boot() < end {
				if mutex.LockContext(ctx) != nil {
					continue // the time is up
				}
				began := worker.Boot()
				worker.Pause(job.Hold)
				released := worker.Boot()
				_, err := mutex.Unlock()
				worker.Must(err)
				tenures.Add(job.FirstTask+task, began, released)
				worker.Pause(job.Rest)
			}
		})
	}
	tasks.Wait()
	worker.Emit(map[string]any{"tenures": tenures.List})
}
