// The election of etcd's own client (package concurrency), as a peer.
package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"leasekeeper.dev/benchmarks/worker"
)

func main() {
	job := worker.Read()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: job.Addresses, DialTimeout: 10 * time.Second,
	})
	worker.Must(err)
	var tenures worker.Tenures
	var tasks sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for task := range job.Tasks {
		session, err := concurrency.NewSession(client, concurrency.WithTTL(15))
		worker.Must(err)
		tasks.Go(func() { campaign(ctx, job, job.FirstTask+task, session, &tenures) })
	}
	worker.Pause(job.StartAt + job.Seconds - worker.Boot())
	cancel()
	tasks.Wait()
	worker.Emit(map[string]any{"tenures": tenures.List})
}

func campaign(
	ctx context.Context, job worker.Job, task int, session *concurrency.Session, tenures *worker.Tenures,
) {
	defer session.Close()
	election := concurrency.NewElection(session, job.Lock)
	worker.Pause(job.StartAt - worker.Boot())
	for ctx.Err() == nil {
		if election.Campaign(ctx, fmt.Sprint(task)) != nil {
			return // the time is up
		}
		began := worker.Boot()
		worker.Pause(job.Hold)
		released := worker.Boot()
		if election.Resign(ctx) == nil {
			tenures.Add(task, began, released)
		}
	}
}
